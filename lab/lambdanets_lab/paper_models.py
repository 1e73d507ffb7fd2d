"""The model of each row of the paper's tables."""

import functools
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from lambdanets.layers import LambdaLayer2d
from lambdanets.models import create_model
from lambdanets.models.lambda_resnet import LAMBDA_RESNET_BLOCKS


@dataclass(frozen=True)
class ModelSpec:
    """Arguments of `lambdanets.create_model` for a row, and the image size in pixels."""

    name: str
    overrides: dict[str, Any] = field(default_factory=dict, hash=False)  # unhashable, but compared by ==
    image_size: int = 224

    def create(self, device: str = "meta") -> nn.Module:
        """Create the model, by default on the meta device."""
        with torch.device(device):
            return create_model(self.name, **self.overrides)


def _lambda(**overrides: Any) -> ModelSpec:
    return ModelSpec("resnet50_lambda", overrides)


def _mixer(mixer: str, **overrides: Any) -> ModelSpec:
    return ModelSpec("resnet50_mixer", {"mixer": mixer} | overrides)


def _with_c3(depth: int, image_size: int, **overrides: Any) -> ModelSpec:
    """A LambdaResNet-C4 that has lambda layers in c3 as well, as the FLOPs of Table 16 imply."""
    blocks = ((), *(tuple(range(1, count + 1)) for count in LAMBDA_RESNET_BLOCKS[depth][0][1:]))
    return ModelSpec(f"lambda_resnet{depth}_c4", {"lambda_blocks": blocks} | overrides, image_size)


def _depths_and_sizes() -> dict[str, ModelSpec]:
    sizes = {50: (128, 160), 101: (160, 192), 152: (192, 224, 256, 288), 270: (256,), 350: (256, 288, 320), 420: (320,)}
    return {
        f"depth {depth}, {size}px": ModelSpec(f"lambda_resnet{depth}", image_size=size)
        for depth, image_sizes in sizes.items()
        for size in image_sizes
    }


PAPER_MODELS: dict[str, dict[str, ModelSpec]] = {
    "3": {
        "conv (He et al. 2016, author run)": ModelSpec("resnet50"),
        "conv + channel attention (Hu et al. 2018c, author run)": ModelSpec("seresnet50"),
        "conv + linear attention (Chen et al. 2018)": _mixer("double_attention"),
        "conv + linear attention (Shen et al. 2018)": _mixer("efficient_attention"),
        "conv + relative self-attention (Bello et al. 2019)": _mixer("augmented_attention"),
        "local relative self-attention (Ramachandran et al. 2019)": _mixer("local_attention"),
        "local relative self-attention (Hu et al. 2019)": _mixer("local_relation"),
        "local relative self-attention (Zhao et al. 2020)": _mixer("patchwise_attention"),
        "lambda layer": _lambda(),
        "lambda layer u=4": _lambda(intra_depth=4),
    },
    "4": {
        "global self-attention": _mixer("global_attention"),
        "axial self-attention": _mixer("axial_attention"),
        "local self-attention 7x7": _mixer("local_attention"),
        "lambda layer": _lambda(),
        "lambda layer k=8": _lambda(query_depth=8),
        "lambda layer shared embeddings": _lambda(share_embeddings=True),
        "lambda convolution 7x7": _lambda(scope=7),
    },
    "5": {
        "LambdaResNet-152": ModelSpec("lambda_resnet152", image_size=288),
        "EfficientNet-B7": ModelSpec("efficientnet_b7", image_size=600),
        "ViT-L/16": ModelSpec("vit_large_patch16_384", image_size=384),
    },
    "8": {"ResNet baseline": ModelSpec("resnet50")}
    | {
        f"k={k},h={h},u={u}": _lambda(query_depth=k, heads=h, intra_depth=u)
        for k, h, u in (
            (8, 2, 1), (8, 16, 1), (2, 4, 1), (4, 4, 1), (8, 4, 1), (16, 4, 1), (32, 4, 1), (2, 8, 1), (4, 8, 1),
            (8, 8, 1), (16, 8, 1), (32, 8, 1), (8, 8, 4), (8, 8, 8), (16, 4, 4),
        )
    },
    "9": {
        "content only": _lambda(position=False),
        "position only": _lambda(content=False),
        "content and position": _lambda(),
    },
    "10": {f"{scope}x{scope}": _lambda(pattern="CLLL", scope=scope) for scope in (3, 7, 15, 23, 31)}
    # offsets of up to 55 in each direction cover all pairs of positions in c3's 56x56 maps
    | {"global": _lambda(pattern="CLLL", scope=111)},
    "11": {
        "softmax on keys (default)": _lambda(),
        "softmax on keys and on queries": _lambda(normalize_queries="softmax"),
        "L2 normalization on keys": _lambda(normalize_keys="l2"),
        "no key normalization": _lambda(normalize_keys=None),
        "no BN on queries and values": _lambda(batch_norm=False),
    },
    "12": {
        "-".join(pattern): _lambda(pattern=pattern)
        for pattern in ("CCCC", "LCCC", "LLCC", "LLLC", "LLLL", "CLLL", "CCLL", "CCCL")
    },
    "13": {
        "ResNet-101 wo/ SE": ModelSpec("resnetrs101_plain"),
        "ResNet-101 w/ SE": ModelSpec("resnetrs101"),
        "LambdaResNet-101": ModelSpec("lambda_resnet101"),
        "LambdaResNet-101-C4": ModelSpec("lambda_resnet101_c4"),
        "ResNet-152 wo/ SE": ModelSpec("resnetrs152_plain", image_size=256),
        "ResNet-152 w/ SE": ModelSpec("resnetrs152", image_size=256),
        "LambdaResNet-152": ModelSpec("lambda_resnet152", image_size=256),
        "LambdaResNet-152-C4": ModelSpec("lambda_resnet152_c4", image_size=256),
    },
    "15": {
        "EfficientNet-B6": ModelSpec("efficientnet_b6", image_size=528),
        "LambdaResNet-152-C4": ModelSpec("lambda_resnet152_c4", image_size=320),
        "LambdaResNet-200-C4": ModelSpec("lambda_resnet200_c4", image_size=320),
    },
    "16": {
        "EfficientNet-B6": ModelSpec("efficientnet_b6", image_size=528),
        "LambdaResNet-270-C4 (7x7)": _with_c3(270, 256, scope=7),
    },
    "17": {
        "MobileNet-v2": ModelSpec("mobilenetv2_100"),
        "MobileNet-v2 with 2 lightweight lambda blocks": ModelSpec("mobilenetv2_lambda"),
    },
    "18": _depths_and_sizes(),
    "19": {f"LambdaResNet-{depth}": ModelSpec(f"lambda_resnet{depth}") for depth in (50, 101, 152, 200, 270, 350, 420)},
}  # fmt: skip


@functools.cache
def structure(name: str) -> dict[str, str]:
    """Count the blocks in c2 to c5, and list c4's blocks with a lambda layer, by column of Table 19."""
    model: Any = ModelSpec(name).create()
    stages = [model.layer1, model.layer2, model.layer3, model.layer4]
    in_c4 = [i for i, block in enumerate(model.layer3, 1) if isinstance(block.conv2, LambdaLayer2d)]
    blocks = "-".join(str(len(stage)) for stage in stages)
    return {"blocks": blocks, "lambda layers in c4": ", ".join(map(str, in_c4))}
