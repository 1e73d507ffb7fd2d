"""LambdaResNets: timm's ResNet with 3x3 convolutions replaced by lambda layers (Secs. 4 and F.2).

Stages are called c2, c3, c4 and c5 as in the paper; in timm's ResNet they are layer1 to layer4.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from timm.layers import get_attn
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.resnet import Bottleneck
from torch import nn

from lambdanets.layers import LambdaLayer2d, RelativeEmbedding
from lambdanets.models.resnet import (
    RESNET_50,
    RESNET_RS,
    SMALL_BLOCKS,
    SMALL_CFG,
    SMALL_RESNET_20,
    STAGES,
    SurgicalResNet,
    blocks_of_pattern,
    default_cfg,
    every_block,
)

# Numbers of blocks in c2..c5, and the blocks of c4 with a lambda layer, counted from 1 (Table 19). All of c5 have one.
LAMBDA_RESNETS = {
    50: ((3, 4, 6, 3), (3,)),
    101: ((3, 4, 23, 3), (6, 12, 18)),
    152: ((3, 8, 36, 3), (5, 10, 15, 20, 25, 30)),
    200: ((3, 24, 36, 3), (5, 10, 15, 20, 25, 30)),
    270: ((4, 29, 53, 4), (8, 16, 24, 32, 40, 48)),
    350: ((4, 36, 72, 4), (10, 20, 30, 40, 50, 60)),
    420: ((4, 44, 87, 4), (10, 20, 30, 40, 50, 60, 70, 80)),
}


class LambdaResNet(SurgicalResNet):
    """timm's ResNet with lambda layers in chosen blocks; supports features_only, reset_classifier and checkpointing.

    lambda_blocks: for c2..c5 the blocks, counted from 1, whose 3x3 convolution becomes a lambda layer. In a strided
        block the layer runs at the input resolution, followed by average pooling.
    squeeze_excite: the stages that keep their squeeze-and-excitation, if `block_args` adds it. By the paper's
        parameter counts these are c2 and c3; c4 has none, not even in its convolution blocks.
    small_images: a stride-1 3x3 stem without pooling, as usual for images of 32 pixels.
    query_depth, heads, intra_depth, scope, content, position, normalize_keys, normalize_queries, batch_norm,
        multi_head, algorithm: of each `LambdaLayer2d`; scope defaults to 23, or 7 with an intra-depth above 1 (F.2).
        normalize_keys may also be "none", because timm.create_model drops options that are None.
    share_embeddings: one table for all layers that run at the same resolution (Sec. 3.2, Table 4).
    resnet: arguments of timm's ResNet.
    """

    def __init__(
        self,
        *,
        lambda_blocks: tuple[tuple[int, ...], ...],
        squeeze_excite: tuple[str, ...] = ("c2", "c3"),
        small_images: bool = False,
        query_depth: int = 16,
        heads: int = 4,
        intra_depth: int = 1,
        scope: int | None = None,
        content: bool = True,
        position: bool = True,
        normalize_keys: str | None = "softmax",
        normalize_queries: str | None = None,
        batch_norm: bool = True,
        multi_head: bool = False,
        share_embeddings: bool = False,
        algorithm: str = "auto",
        **resnet: Any,
    ) -> None:
        super().__init__(small_images=small_images, **resnet)
        if scope is None:
            scope = 23 if intra_depth == 1 else 7
        resolutions: dict[nn.Conv2d, int] = {}  # the cumulative stride before each 3x3 convolution
        stride = 1
        for name, stage in zip(STAGES, self.stages(), strict=True):
            for block in stage:
                if name not in squeeze_excite:
                    block.se = None
                if isinstance(block, Bottleneck):
                    resolutions[block.conv2] = stride
                    stride *= block.conv2.stride[0]

        shared: dict[int, RelativeEmbedding] = {}

        def make_layer(conv: nn.Conv2d) -> LambdaLayer2d:
            layer = LambdaLayer2d(
                conv.in_channels,
                conv.out_channels,
                query_depth=query_depth,
                heads=heads,
                intra_depth=intra_depth,
                scope=scope,
                embedding=shared.get(resolutions[conv]),
                # timm replaces stride by dilation for output_stride; a lambda layer does not need the dilation
                stride=conv.stride[0],
                content=content,
                position=position,
                normalize_keys=None if normalize_keys == "none" else normalize_keys,
                normalize_queries=normalize_queries,
                batch_norm=batch_norm,
                multi_head=multi_head,
                algorithm=algorithm,
                device=conv.weight.device,
                dtype=conv.weight.dtype,
            )
            if share_embeddings and isinstance(layer.embedding, RelativeEmbedding):
                shared.setdefault(resolutions[conv], layer.embedding)
            return layer

        self.replace(lambda_blocks, make_layer)


_RESNET_RS = RESNET_RS | {"block_args": {"attn_layer": partial(get_attn("se"), rd_ratio=0.25)}}


def _family() -> dict[str, dict[str, Any]]:
    """Constructor arguments of each LambdaResNet, by name."""
    family: dict[str, dict[str, Any]] = {}
    for depth, (layers, c4_blocks) in LAMBDA_RESNETS.items():
        for name, c4 in ((f"lambda_resnet{depth}", c4_blocks), (f"lambda_resnet{depth}_c4", every_block(layers[2]))):
            family[name] = _RESNET_RS | {"layers": layers, "lambda_blocks": ((), (), c4, every_block(layers[3]))}
    family["lambda_resnet20_small"] = SMALL_RESNET_20 | {"lambda_blocks": SMALL_BLOCKS, "scope": 15}
    return family


FAMILY = _family()

default_cfgs = generate_default_cfgs(
    {f"{name}.untrained": default_cfg() for name in FAMILY}
    | {
        "lambda_resnet20_small.untrained": default_cfg(**SMALL_CFG),
        "resnet50_lambda.untrained": default_cfg(first_conv="conv1"),
    }
)


def _register(name: str) -> Callable[..., nn.Module]:
    def create(pretrained: bool = False, **overrides: Any) -> nn.Module:
        return build_model_with_cfg(LambdaResNet, name, pretrained, **FAMILY[name] | overrides)

    create.__name__ = create.__qualname__ = name
    create.__doc__ = f"{name} of Table 19; overrides are LambdaResNet's arguments."
    return register_model(create)


for _name in FAMILY:
    globals()[_name] = _register(_name)


@register_model
def resnet50_lambda(pretrained: bool = False, pattern: str = "LLLL", **overrides: Any) -> nn.Module:
    """Vanilla ResNet-50 with the stages marked L in `pattern` (c2 to c5) on lambda layers (Tables 3 and 8 to 12).

    overrides: LambdaResNet's arguments, such as query_depth, heads, intra_depth and scope.
    Raises ValueError unless the pattern is four letters out of C and L.
    """
    arguments = RESNET_50 | {"lambda_blocks": blocks_of_pattern(pattern, RESNET_50["layers"])}
    return build_model_with_cfg(LambdaResNet, "resnet50_lambda", pretrained, **arguments | overrides)
