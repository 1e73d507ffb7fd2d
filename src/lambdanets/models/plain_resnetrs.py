"""ResNet-RS without squeeze-and-excitation: the convolutional twins of LambdaResNets in Tables 6, 13 and 14.

timm has ResNet-RS with squeeze-and-excitation, as resnetrs50 to resnetrs420.
"""

from collections.abc import Callable
from typing import Any

import timm
from timm.models import register_model
from torch import nn

from lambdanets.errors import InputError

DEPTHS = (50, 101, 152, 200, 270, 350, 420)


def _register(depth: int) -> Callable[..., nn.Module]:
    name = f"resnetrs{depth}_plain"

    def create(pretrained: bool = False, **overrides: Any) -> nn.Module:
        if pretrained:
            raise InputError(f"pretrained must be a path for {name}, which has no published weights, got True")
        return timm.create_model(f"resnetrs{depth}", **{"block_args": {}} | overrides)

    create.__name__ = create.__qualname__ = name
    create.__doc__ = f"ResNet-RS-{depth} without squeeze-and-excitation; overrides are those of timm's ResNet."
    return register_model(create)


MODELS = tuple(_register(depth) for depth in DEPTHS)
