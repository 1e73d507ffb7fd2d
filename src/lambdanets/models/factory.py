"""Models by name."""

import inspect
import re
import warnings
from pathlib import Path
from typing import Any

import timm
from timm.models import is_model_pretrained
from timm.models.efficientnet import EfficientNet
from timm.models.resnet import ResNet
from torch import nn

from lambdanets.errors import InputError, did_you_mean, nearest, one_line
from lambdanets.layers.module import SYNONYMS
from lambdanets.models import lambda_resnet, mixer_resnet, mobilenetv2_lambda, plain_resnetrs
from lambdanets.models.weights import load_weights


def list_models() -> list[str]:
    """Names of the models of this package, sorted; timm.list_models has them too, among its own."""
    singles = (lambda_resnet.resnet50_lambda, mobilenetv2_lambda.mobilenetv2_lambda)
    others = (*singles, *mixer_resnet.MODELS, *plain_resnetrs.MODELS)
    return sorted([*lambda_resnet.FAMILY, *(model.__name__ for model in others)])


def create_model(
    name: str, pretrained: str | Path | bool | None = None, num_classes: int | None = None, **overrides: Any
) -> nn.Module:
    """A model of this package, or any of timm's, by name.

    name: also "local-dir:FOLDER" or "hf-hub:USER/NAME" for a model saved by timm.models.save_for_hf or push_to_hf_hub.
    pretrained: None for random initialization; a path to weights in a .safetensors file or a checkpoint of this
        package; True for the weights of a folder or hub, or those timm has. This package has published none yet.
    num_classes: None for what a folder or hub says, otherwise 1000; 0 for no classifier.
    overrides: what the model's constructor takes, such as scope=7, drop_path_rate=0.1, in_chans=1, features_only=True.

    Raises ValueError naming the nearest names for an unknown one, a wrong override, or weights that do not fit.
    """
    if not timm.is_model(name.split(".")[0]) and ":" not in name:
        raise InputError(unknown_model(name))
    if pretrained is True and name.split(".")[0] in list_models():
        _check_has_weights(name.split(".")[0])
    checkpoint = overrides.get("checkpoint_path")
    if checkpoint and not Path(checkpoint).is_file():
        raise InputError(f"checkpoint_path must be a checkpoint file, got '{checkpoint}', which is none")
    if "normalize_keys" in overrides and overrides["normalize_keys"] is None:
        overrides["normalize_keys"] = "none"  # timm drops options that are None
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*pickle protocol.*please file an issue.*")
            model = timm.create_model(name, pretrained=pretrained is True, num_classes=num_classes, **overrides)
    except Exception as error:  # timm's constructors and loaders check little, and raise whatever comes of it
        unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if unknown:
            close = did_you_mean(unknown[1], _arguments_of(name), SYNONYMS)
            raise InputError(f"{name} takes no argument {unknown[1]!r}{close}") from error
        reason = one_line(error)
        if "weights_only" in reason:  # torch and timm advise to load such a file without it, which runs its code
            reason = "checkpoint_path must be a checkpoint of tensors alone; this one is damaged or holds code"
        given = f" with {overrides}" if overrides else ""
        raise InputError(f"{name} cannot be built{given}: {reason}") from error
    if pretrained is not None and not isinstance(pretrained, bool):
        load_weights(model, pretrained)
    return model


def _arguments_of(name: str) -> list[str]:
    """What the constructors of a model of this package take."""
    if name not in list_models():
        return []
    classes: tuple[type, ...] = (lambda_resnet.LambdaResNet, ResNet)
    if name == "mobilenetv2_lambda":
        classes = (mobilenetv2_lambda.LambdaMobileNetV2, EfficientNet)
    elif name.endswith("_plain"):
        classes = (ResNet,)
    return [argument for model in classes for argument in inspect.signature(model).parameters]


def _check_has_weights(name: str) -> None:
    """Raise ValueError, saying which models have weights and how to load one's own, unless the model has some."""
    available = [model for model in list_models() if is_model_pretrained(model)]
    if name not in available:
        raise InputError(
            f"pretrained must be a path to weights for {name}, which has none of its own, got True; models of this "
            f"package with weights: {', '.join(available) or 'none yet'}; to load your own: pretrained=PATH, "
            "checkpoint_path=PATH, or the name 'local-dir:FOLDER' or 'hf-hub:USER/NAME' with pretrained=True"
        )


def unknown_model(name: str) -> str:
    """A sentence that names the models nearest to an unknown name, this package's before timm's."""
    ours = list_models()
    close = nearest(name, ours, 3) or nearest(name, timm.list_models(), 3)
    return f"there is no model named {name!r}{close or '; this package has ' + ', '.join(ours)}"
