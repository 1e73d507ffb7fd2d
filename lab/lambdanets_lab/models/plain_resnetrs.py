"""ResNet-RS without squeeze-and-excitation: the convolutional baselines of LambdaResNets (Tables 6, 13 and 14).

timm has the versions with squeeze-and-excitation, resnetrs50 to resnetrs420.
"""

from collections.abc import Callable
from typing import Any

from timm.models import build_model_with_cfg, generate_default_cfgs, get_pretrained_cfg, register_model
from timm.models.resnet import ResNet
from torch import nn

from lambdanets.models.lambda_resnet import LAMBDA_RESNET_BLOCKS, RESNET_RS, default_cfg

DEPTHS = (50, 101, 152, 200, 270, 350, 420)
_PREPROCESSING_FIELDS = ("input_size", "pool_size", "crop_pct", "test_input_size", "interpolation")

default_cfgs = generate_default_cfgs(
    {
        f"resnetrs{depth}_plain.untrained": default_cfg(
            **{name: getattr(get_pretrained_cfg(f"resnetrs{depth}"), name) for name in _PREPROCESSING_FIELDS}
        )
        for depth in DEPTHS
    }
)


def _register(depth: int) -> Callable[..., nn.Module]:
    name = f"resnetrs{depth}_plain"

    def create(pretrained: bool = False, **overrides: Any) -> nn.Module:
        arguments = RESNET_RS | {"layers": LAMBDA_RESNET_BLOCKS[depth][0]}
        return build_model_with_cfg(ResNet, name, pretrained, **arguments | overrides)

    create.__name__ = create.__qualname__ = name
    create.__doc__ = f"ResNet-RS-{depth} without squeeze-and-excitation; overrides are arguments of timm's ResNet."
    return register_model(create)


for _depth in DEPTHS:
    _register(_depth)
