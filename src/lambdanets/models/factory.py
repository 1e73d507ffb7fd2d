"""Models by name."""

import re
from pathlib import Path
from typing import Any

import timm
from torch import nn

from lambdanets.errors import InputError, nearest
from lambdanets.models import lambda_resnet, mixer_resnet, mobilenetv2_lambda, plain_resnetrs
from lambdanets.models.weights import load_weights


def list_models() -> list[str]:
    """Names of the models of this package, sorted; timm.list_models has them too, among its own."""
    singles = (lambda_resnet.resnet50_lambda, mobilenetv2_lambda.mobilenetv2_lambda)
    others = (*singles, *mixer_resnet.MODELS, *plain_resnetrs.MODELS)
    return sorted([*lambda_resnet.FAMILY, *(model.__name__ for model in others)])


def create_model(
    name: str, pretrained: str | Path | bool | None = None, num_classes: int = 1000, **overrides: Any
) -> nn.Module:
    """A model of this package, or any of timm's, by name.

    pretrained: None for fresh weights; a path to weights in a .safetensors file or a checkpoint of this package; True
        for timm's own published weights, which this package's models do not have.
    overrides: what the model's constructor takes, such as scope=7, drop_path_rate=0.1, in_chans=1, features_only=True.

    Raises ValueError naming the nearest names for an unknown one, a wrong override, or weights that do not fit.
    """
    if not timm.is_model(name.split(".")[0]) and ":" not in name:
        raise InputError(unknown_model(name))
    if "normalize_keys" in overrides and overrides["normalize_keys"] is None:
        overrides["normalize_keys"] = "none"  # timm drops options that are None
    try:
        model = timm.create_model(name, pretrained=pretrained is True, num_classes=num_classes, **overrides)
    except Exception as error:  # timm's constructors and loaders check little, and raise whatever comes of it
        unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if unknown:
            raise InputError(f"{name} takes no argument {unknown[1]!r}") from error
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{name} cannot be built with {overrides}: {reason}") from error
    if pretrained is not None and not isinstance(pretrained, bool):
        load_weights(model, pretrained)
    return model


def unknown_model(name: str) -> str:
    """A sentence that names the models nearest to an unknown name, this package's before timm's."""
    ours = list_models()
    close = nearest(name, ours, 3) or nearest(name, timm.list_models(), 3)
    return f"there is no model named {name!r}{close or '; this package has ' + ', '.join(ours)}"
