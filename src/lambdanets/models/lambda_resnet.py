"""LambdaResNets: timm's ResNet with 3x3 convolutions replaced by lambda layers (Secs. 4 and F.2 of the paper).

Stages are called c2, c3, c4 and c5, as in the paper; in timm's ResNet they are layer1 to layer4.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from timm.layers import get_attn
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.resnet import Bottleneck, ResNet, _cfg
from torch import nn

from lambdanets.errors import InputError
from lambdanets.layers import LambdaLayer2d, RelativeEmbedding
from lambdanets.models.surgery import replace_convolutions

Blocks = Sequence[Sequence[int]]  # blocks of each of c2 to c5, counted from 1

RESNET_50: dict[str, Any] = {"block": Bottleneck, "layers": (3, 4, 6, 3)}
_DEEP_STEM: dict[str, Any] = {"block": Bottleneck, "stem_type": "deep", "avg_down": True}

# ResNet-RS of any depth, without squeeze-and-excitation.
RESNET_RS = _DEEP_STEM | {"stem_width": 32, "replace_stem_pool": True}

# For images of about 32 pixels: a quarter of the usual width, c2 at full resolution, without squeeze-and-excitation.
SMALL_RESNET_20 = _DEEP_STEM | {"layers": (1, 2, 2, 1), "channels": (16, 32, 64, 128)}
SMALL_RESNET_20 |= {"stem_width": 16, "small_images": True}
SMALL_BLOCKS = ((), (), (2,), (1,))
SMALL_CFG: dict[str, Any] = {"input_size": (3, 32, 32), "pool_size": (4, 4), "crop_pct": 1.0, "first_conv": "conv1"}

# By depth: the numbers of blocks in c2 to c5, and the blocks of c4 with a lambda layer, counted from 1 (Table 19).
# All blocks of c5 have one.
LAMBDA_RESNET_BLOCKS = {
    50: ((3, 4, 6, 3), (3,)),
    101: ((3, 4, 23, 3), (6, 12, 18)),
    152: ((3, 8, 36, 3), (5, 10, 15, 20, 25, 30)),
    200: ((3, 24, 36, 3), (5, 10, 15, 20, 25, 30)),
    270: ((4, 29, 53, 4), (8, 16, 24, 32, 40, 48)),
    350: ((4, 36, 72, 4), (10, 20, 30, 40, 50, 60)),
    420: ((4, 44, 87, 4), (10, 20, 30, 40, 50, 60, 70, 80)),
}


class ResNetBase(ResNet):
    """timm's ResNet, with a method that replaces 3x3 convolutions after construction.

    It supports features_only, reset_classifier and gradient checkpointing.

    Args:
        small_images: use a 3x3 stem with stride 1 and without pooling, for images of about 32 pixels; default False.
        resnet: arguments of timm's ResNet.
    """

    conv1: nn.Module
    feature_info: list[dict[str, Any]]

    def __init__(self, *, small_images: bool = False, **resnet: Any) -> None:
        if small_images and "output_stride" in resnet:
            resnet["output_stride"] *= 4  # of the default stem and its pooling
        super().__init__(**resnet)
        if not small_images:
            return
        first = next(module for module in self.conv1.modules() if isinstance(module, nn.Conv2d))
        self.conv1 = nn.Conv2d(first.in_channels, self.bn1.num_features, 3, padding=1, bias=False).to(first.weight)
        nn.init.kaiming_normal_(self.conv1.weight, mode="fan_out", nonlinearity="relu")
        self.maxpool = nn.Identity()
        self.feature_info = [info | {"reduction": max(info["reduction"] // 4, 1)} for info in self.feature_info]

    def stages(self) -> list[Any]:
        """Return the stages c2 to c5, each a sequence of blocks."""
        return [self.layer1, self.layer2, self.layer3, self.layer4]

    def replace(self, blocks: Blocks, make_layer: Callable[[nn.Conv2d], nn.Module]) -> None:
        """Replace the 3x3 convolution of each of these blocks by make_layer(convolution)."""
        names = [f"layer{stage}.{block - 1}.conv2" for stage, numbers in enumerate(blocks, 1) for block in numbers]
        if names:
            replace_convolutions(self, make_layer, names)

    def no_weight_decay(self) -> set[str]:
        """Return the names of the embedding tables, which timm's optimizers then exclude from weight decay.

        Also a pattern for their names in torch.compile and DistributedDataParallel, which put a prefix before names.
        """
        return {"*table"}.union(name for name, _ in self.named_parameters() if name.endswith("table"))


class LambdaResNet(ResNetBase):
    """timm's ResNet with lambda layers in some blocks.

    Args:
        lambda_blocks: for each of c2 to c5, the blocks whose 3x3 convolution becomes a lambda layer, counted from 1. In
            a block with a stride, the layer runs at the input resolution and is followed by average pooling.
        share_embeddings: share one embedding table between all layers at the same resolution (Sec. 3.2, Table 4);
            default False.
        options: those of `LAYER_OPTIONS` are arguments of each `LambdaLayer2d`. The default scope is 23, or 7 if
            intra_depth is above 1 (Sec. F.2). normalize_keys may also be "none", because timm.create_model drops
            arguments that are None. Others are small_images, and arguments of timm's ResNet.
    """

    LAYER_OPTIONS = (
        *("query_depth", "heads", "intra_depth", "scope", "content", "position"),
        *("normalize_keys", "normalize_queries", "batch_norm", "multi_head", "algorithm"),
    )

    def __init__(
        self, *, lambda_blocks: tuple[tuple[int, ...], ...], share_embeddings: bool = False, **options: Any
    ) -> None:
        layer_options = {name: options.pop(name) for name in self.LAYER_OPTIONS if name in options}
        super().__init__(**options)
        if layer_options.get("scope") is None:
            layer_options["scope"] = 23 if layer_options.get("intra_depth", 1) == 1 else 7
        if layer_options.get("normalize_keys") == "none":
            layer_options["normalize_keys"] = None
        input_strides: dict[nn.Conv2d, int] = {}  # of the whole network, before each of the convolutions
        for number, stage in enumerate(self.stages(), 1):
            for block in stage:
                if number > 2:  # the paper's parameter counts are without, even beside convolutions
                    block.se = None
                is_strided = block.conv2.stride[0] > 1  # in a BasicBlock, conv1 has the stride
                input_strides[block.conv2] = self.feature_info[number - is_strided]["reduction"]
        shared_embeddings: dict[int, RelativeEmbedding] = {}  # by input stride

        def make_layer(conv: nn.Conv2d) -> LambdaLayer2d:
            layer = LambdaLayer2d(
                conv.in_channels,
                conv.out_channels,
                embedding=shared_embeddings.get(input_strides[conv]),
                # timm replaces stride by dilation for output_stride; a lambda layer does not need the dilation
                stride=conv.stride[0],
                **layer_options,
            )
            if share_embeddings and isinstance(layer.embedding, RelativeEmbedding):
                shared_embeddings.setdefault(input_strides[conv], layer.embedding)
            return layer

        self.replace(lambda_blocks, make_layer)


def parse_pattern(pattern: str, layers: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Return the blocks of c2 to c5 for a pattern like "CCLL": all blocks of the stages with an L.

    layers: number of blocks of each stage. Raises ValueError unless the pattern consists of four letters C or L.
    """
    letters = pattern.upper().replace("-", "") if isinstance(pattern, str) else ""
    if len(letters) != 4 or set(letters) - {"C", "L"}:
        raise InputError(f"pattern must be four letters, C or L for each of c2 to c5, like 'CCLL', got {pattern!r}")
    return tuple(tuple(range(1, n + 1)) if letter == "L" else () for letter, n in zip(letters, layers, strict=True))


default_cfg = partial(_cfg, interpolation="bicubic", first_conv="conv1.0")  # preprocessing, first and last layer
_RESNET_RS = RESNET_RS | {"block_args": {"attn_layer": partial(get_attn("se"), rd_ratio=0.25)}}

# The constructor arguments of each LambdaResNet, by name.
LAMBDA_RESNET_ARGUMENTS: dict[str, dict[str, Any]] = {
    f"lambda_resnet{depth}{suffix}": _RESNET_RS
    | {"layers": layers, "lambda_blocks": ((), (), c4, tuple(range(1, layers[3] + 1)))}
    for depth, (layers, c4_blocks) in LAMBDA_RESNET_BLOCKS.items()
    for suffix, c4 in (("", c4_blocks), ("_c4", tuple(range(1, layers[2] + 1))))
} | {"lambda_resnet20_small": SMALL_RESNET_20 | {"lambda_blocks": SMALL_BLOCKS, "scope": 15}}

default_cfgs = generate_default_cfgs(
    {f"{name}.untrained": default_cfg() for name in LAMBDA_RESNET_ARGUMENTS}
    | {
        "lambda_resnet20_small.untrained": default_cfg(**SMALL_CFG),
        "resnet50_lambda.untrained": default_cfg(first_conv="conv1"),
    }
)


def register(
    module: str, network: type[nn.Module], name: str, arguments: dict[str, Any], feature_cls: str | None = None
) -> Callable[..., nn.Module]:
    """Register a function with timm, and in its module, that builds a network; overrides are its arguments.

    module: the name of a module, whose `default_cfgs` have the model's. feature_cls: how timm extracts features.
    """

    def create(pretrained: bool = False, **overrides: Any) -> nn.Module:
        features = {"feature_cls": feature_cls} if feature_cls else None  # new, since timm removes its entries
        return build_model_with_cfg(network, name, pretrained, feature_cfg=features, **arguments | overrides)

    create.__module__, create.__name__, create.__qualname__ = module, name, name
    create.__doc__ = f"{name}; overrides are arguments of {network.__name__}."
    setattr(sys.modules[module], name, create)  # timm adds it to the names of the module
    return register_model(create)


for _name, _arguments in LAMBDA_RESNET_ARGUMENTS.items():  # of Table 19
    register(__name__, LambdaResNet, _name, _arguments)


@register_model
def resnet50_lambda(pretrained: bool = False, pattern: str = "LLLL", **overrides: Any) -> nn.Module:
    """ResNet-50 with lambda layers in all blocks of some stages (Tables 3 and 8 to 12 of the paper).

    Args:
        pattern: one letter for each of the stages c2 to c5: L for lambda layers, C for convolutions; default "LLLL".
        overrides: arguments of LambdaResNet, such as query_depth, heads, intra_depth and scope.

    Raises ValueError unless the pattern has four letters C or L.
    """
    arguments = RESNET_50 | overrides
    arguments = {"lambda_blocks": parse_pattern(pattern, arguments["layers"])} | arguments
    return build_model_with_cfg(LambdaResNet, "resnet50_lambda", pretrained, **arguments)
