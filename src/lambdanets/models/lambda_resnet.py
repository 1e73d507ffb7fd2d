"""LambdaResNets: timm's ResNet with 3x3 convolutions replaced by lambda layers (Secs. 4 and F.2 of the paper).

Stages are called c2, c3, c4 and c5, as in the paper; in timm's ResNet they are layer1 to layer4.
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
    ResNetBase,
    all_blocks,
    default_cfg,
    parse_pattern,
)

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


PADDING_CAN_BE_HIDDEN = True  # with all options: Mask R-CNN does not check it


class LambdaResNet(ResNetBase):
    """timm's ResNet with lambda layers in some blocks.

    It supports features_only, reset_classifier and gradient checkpointing.

    Args:
        lambda_blocks: for each of c2 to c5, the blocks whose 3x3 convolution becomes a lambda layer, counted from 1. In
            a block with a stride, the layer runs at the input resolution and is followed by average pooling.
        squeeze_excite: stages with squeeze-and-excitation, if `block_args` adds it; default ("c2", "c3").
            According to the parameter counts in the paper, c4 has none, not even in blocks with convolutions.
        small_images: use a 3x3 stem with stride 1 and without pooling, for images of about 32 pixels; default False.
        query_depth, heads, intra_depth, scope, content, position, normalize_keys, normalize_queries, batch_norm,
            multi_head, algorithm: arguments of each `LambdaLayer2d`. The default scope is 23, or 7 if intra_depth is
            above 1 (Sec. F.2). normalize_keys may also be "none", because timm.create_model drops arguments that are
            None.
        share_embeddings: share one embedding table between all layers at the same resolution (Sec. 3.2, Table 4);
            default False.
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
        input_strides: dict[nn.Conv2d, int] = {}  # the cumulative stride before each 3x3 convolution
        stride = 1
        for name, stage in zip(STAGES, self.stages(), strict=True):
            for block in stage:
                if name not in squeeze_excite:
                    block.se = None
                if isinstance(block, Bottleneck):
                    input_strides[block.conv2] = stride
                    stride *= block.conv2.stride[0]

        shared_embeddings: dict[int, RelativeEmbedding] = {}  # by input stride

        def make_layer(conv: nn.Conv2d) -> LambdaLayer2d:
            layer = LambdaLayer2d(
                conv.in_channels,
                conv.out_channels,
                query_depth=query_depth,
                heads=heads,
                intra_depth=intra_depth,
                scope=scope,
                embedding=shared_embeddings.get(input_strides[conv]),
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
                shared_embeddings.setdefault(input_strides[conv], layer.embedding)
            return layer

        self.replace(lambda_blocks, make_layer)


_RESNET_RS = RESNET_RS | {"block_args": {"attn_layer": partial(get_attn("se"), rd_ratio=0.25)}}


def _lambda_resnet_arguments() -> dict[str, dict[str, Any]]:
    """Return the constructor arguments of each LambdaResNet, by name."""
    arguments: dict[str, dict[str, Any]] = {}
    for depth, (layers, c4_blocks) in LAMBDA_RESNET_BLOCKS.items():
        for name, c4 in ((f"lambda_resnet{depth}", c4_blocks), (f"lambda_resnet{depth}_c4", all_blocks(layers[2]))):
            arguments[name] = _RESNET_RS | {"layers": layers, "lambda_blocks": ((), (), c4, all_blocks(layers[3]))}
    arguments["lambda_resnet20_small"] = SMALL_RESNET_20 | {"lambda_blocks": SMALL_BLOCKS, "scope": 15}
    return arguments


LAMBDA_RESNET_ARGUMENTS = _lambda_resnet_arguments()

default_cfgs = generate_default_cfgs(
    {f"{name}.untrained": default_cfg() for name in LAMBDA_RESNET_ARGUMENTS}
    | {
        "lambda_resnet20_small.untrained": default_cfg(**SMALL_CFG),
        "resnet50_lambda.untrained": default_cfg(first_conv="conv1"),
    }
)


def _register(name: str) -> Callable[..., nn.Module]:
    def create(pretrained: bool = False, **overrides: Any) -> nn.Module:
        return build_model_with_cfg(LambdaResNet, name, pretrained, **LAMBDA_RESNET_ARGUMENTS[name] | overrides)

    create.__name__ = create.__qualname__ = name
    create.__doc__ = f"{name} of Table 19; overrides are LambdaResNet's arguments."
    return register_model(create)


for _name in LAMBDA_RESNET_ARGUMENTS:
    globals()[_name] = _register(_name)


@register_model
def resnet50_lambda(pretrained: bool = False, pattern: str = "LLLL", **overrides: Any) -> nn.Module:
    """ResNet-50 with lambda layers in all blocks of some stages (Tables 3 and 8 to 12 of the paper).

    Args:
        pattern: one letter for each of the stages c2 to c5: L for lambda layers, C for convolutions; default "LLLL".
        overrides: arguments of LambdaResNet, such as query_depth, heads, intra_depth and scope.

    Raises ValueError unless the pattern has four letters C or L.
    """
    arguments = RESNET_50 | {"lambda_blocks": parse_pattern(pattern, RESNET_50["layers"])}
    return build_model_with_cfg(LambdaResNet, "resnet50_lambda", pretrained, **arguments | overrides)
