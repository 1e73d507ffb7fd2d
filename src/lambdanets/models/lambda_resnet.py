"""LambdaResNets: timm's ResNet with 3x3 convolutions replaced by lambda layers (Secs. 4 and F.2).

Stages are called c2, c3, c4 and c5 as in the paper; in timm's ResNet they are layer1 to layer4.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from timm.layers import get_attn
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.resnet import Bottleneck, ResNet
from torch import nn

from lambdanets.errors import InputError
from lambdanets.layers import LambdaLayer2d, RelativeEmbedding
from lambdanets.models.surgery import replace_convolutions

STAGES = ("c2", "c3", "c4", "c5")

# Blocks of c2..c5, and the blocks of c4, counted from 1, that hold a lambda layer: Table 19. All of c5 do.
LAMBDA_RESNETS = {
    50: ((3, 4, 6, 3), (3,)),
    101: ((3, 4, 23, 3), (6, 12, 18)),
    152: ((3, 8, 36, 3), (5, 10, 15, 20, 25, 30)),
    200: ((3, 24, 36, 3), (5, 10, 15, 20, 25, 30)),
    270: ((4, 29, 53, 4), (8, 16, 24, 32, 40, 48)),
    350: ((4, 36, 72, 4), (10, 20, 30, 40, 50, 60)),
    420: ((4, 44, 87, 4), (10, 20, 30, 40, 50, 60, 70, 80)),
}


class LambdaResNet(ResNet):
    """timm's ResNet with lambda layers in chosen blocks; keeps timm's features_only, reset_classifier, checkpointing.

    lambda_blocks: for c2..c5 the blocks, counted from 1, whose 3x3 convolution becomes a lambda layer. In a block that
        strides, the layer runs at the incoming resolution and an average pool follows.
    squeeze_excite: the stages that keep their squeeze-and-excitation (where `block_args` adds it at all). By the
        printed parameter counts those are c2 and c3, convolution blocks of c4 included in the exception.
    small_images: a stride-1 3x3 stem without pooling, as usual for images of 32 pixels.
    query_depth, heads, intra_depth, scope, content, position, normalize_keys, normalize_queries, batch_norm,
        multi_head, algorithm: of each `LambdaLayer2d`; scope defaults to 23, or 7 with an intra-depth above 1 (F.2).
    share_embeddings: one table for all layers that run at the same resolution (Sec. 3.2, Table 4).
    resnet: what timm's ResNet takes.
    """

    conv1: nn.Module
    feature_info: list[dict[str, Any]]

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
        super().__init__(**resnet)
        if small_images:
            self._take_small_images()
        if scope is None:
            scope = 23 if intra_depth == 1 else 7
        stages = [self.layer1, self.layer2, self.layer3, self.layer4]
        resolutions: dict[nn.Conv2d, int] = {}  # the stride before each convolution that may be replaced
        stride = 1
        for name, stage in zip(STAGES, stages, strict=True):
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
                # timm trades stride for dilation when asked for output_stride; a lambda layer's scope needs no dilation
                stride=conv.stride[0],
                content=content,
                position=position,
                normalize_keys=normalize_keys,
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

        chosen = [
            f"layer{stage}.{block - 1}.conv2" for stage, blocks in enumerate(lambda_blocks, 1) for block in blocks
        ]
        if chosen:
            replace_convolutions(self, make_layer, chosen)

    def _take_small_images(self) -> None:
        first = next(module for module in self.conv1.modules() if isinstance(module, nn.Conv2d))
        factory: dict[str, Any] = {"device": first.weight.device, "dtype": first.weight.dtype}
        self.conv1 = nn.Conv2d(first.in_channels, self.bn1.num_features, 3, padding=1, bias=False, **factory)
        nn.init.kaiming_normal_(self.conv1.weight, mode="fan_out", nonlinearity="relu")
        self.maxpool = nn.Identity()
        # the stem halved once and the pool once
        self.feature_info = [info | {"reduction": max(info["reduction"] // 4, 1)} for info in self.feature_info]

    def no_weight_decay(self) -> set[str]:
        """Names of the parameters that timm's optimizers leave undecayed: the tables of embeddings."""
        return {name for name, _ in self.named_parameters() if name.endswith(".embedding.table")}


_RESNET_RS = {
    "block": Bottleneck,
    "stem_width": 32,
    "stem_type": "deep",
    "replace_stem_pool": True,
    "avg_down": True,
    "block_args": {"attn_layer": partial(get_attn("se"), rd_ratio=0.25)},
}


def _every_block(blocks: int) -> tuple[int, ...]:
    return tuple(range(1, blocks + 1))


def _family() -> dict[str, dict[str, Any]]:
    """Constructor arguments of each LambdaResNet, by name."""
    family: dict[str, dict[str, Any]] = {}
    for depth, (layers, in_c4) in LAMBDA_RESNETS.items():
        for name, c4 in ((f"lambda_resnet{depth}", in_c4), (f"lambda_resnet{depth}_c4", _every_block(layers[2]))):
            family[name] = _RESNET_RS | {"layers": layers, "lambda_blocks": ((), (), c4, _every_block(layers[3]))}
    # Ours, for images of about 32 pixels: a quarter of the width, c2 at the full resolution, no squeeze-and-excitation.
    family["lambda_resnet20_small"] = {
        "block": Bottleneck,
        "layers": (1, 2, 2, 1),
        "lambda_blocks": ((), (), (2,), (1,)),
        "channels": (16, 32, 64, 128),
        "stem_width": 16,
        "stem_type": "deep",
        "avg_down": True,
        "scope": 15,
        "small_images": True,
    }
    return family


def _default_cfg(**changes: Any) -> dict[str, Any]:
    """What timm keeps beside a model: how to feed it, and the names of its first and last layers."""
    return {
        "input_size": (3, 224, 224),
        "pool_size": (7, 7),
        "crop_pct": 0.875,
        "interpolation": "bicubic",
        "first_conv": "conv1.0",
        "classifier": "fc",
        "license": "apache-2.0",
    } | changes


FAMILY = _family()

default_cfgs = generate_default_cfgs(
    {f"{name}.untrained": _default_cfg() for name in FAMILY}
    | {
        "lambda_resnet20_small.untrained": _default_cfg(
            input_size=(3, 32, 32), pool_size=(4, 4), crop_pct=1.0, first_conv="conv1"
        ),
        "resnet50_lambda.untrained": _default_cfg(first_conv="conv1"),
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
    letters = pattern.upper().replace("-", "")
    if len(letters) != 4 or set(letters) - {"C", "L"}:
        raise InputError(f"pattern must be four letters, C or L for each of c2 to c5, like 'CCLL'; got {pattern!r}")
    layers = (3, 4, 6, 3)
    blocks = tuple(_every_block(n) if letter == "L" else () for letter, n in zip(letters, layers, strict=True))
    arguments = {"block": Bottleneck, "layers": layers, "lambda_blocks": blocks}
    return build_model_with_cfg(LambdaResNet, "resnet50_lambda", pretrained, **arguments | overrides)
