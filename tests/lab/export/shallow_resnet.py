"""A shallow LambdaResNet, whose export is fast."""

from typing import Any

from timm.models import register_model
from torch import nn

from lambdanets import create_model


@register_model
def shallow_lambda_resnet(pretrained: bool = False, **options: Any) -> nn.Module:
    """lambda_resnet20_small with one block in each stage, and a lambda layer in c4."""
    shallow = {"layers": (1, 1, 1, 1), "lambda_blocks": ((), (), (1,), ())}
    return create_model("lambda_resnet20_small", pretrained, **shallow | options)
