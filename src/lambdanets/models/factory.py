"""Create models by name."""

import inspect
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import timm
import torch
from timm.models import build_model_with_cfg, model_entrypoint
from timm.models._hub import load_model_config_from_path
from torch import Tensor, nn

from lambdanets.adoption import adopt, foreign_layers
from lambdanets.errors import InputError, nearest_hint, one_line
from lambdanets.models.weights import (
    CONFIG,
    FOLDER,
    adapt_weights,
    find_weights,
    load_tensors,
    local_path,
    match_names,
    module_names,
    read_weights,
)

# Arguments of timm's functions that extract features or load weights, from files or URLs, and not of an architecture.
_LOADING_ARGUMENTS = {
    *("features_only", "out_indices", "feature_cls", "output_fmt", "flatten_sequential"),
    *inspect.signature(timm.create_model).parameters,
    *inspect.signature(build_model_with_cfg).parameters,
} - {"kwargs"}
ADOPTED_PREFIX = "timm/"  # of the names of timm models whose lambda layers are adopted


def list_models() -> list[str]:
    """Return the sorted names of the models of this package. timm.list_models() includes them too."""
    names = timm.list_models()
    return sorted(name for name in names if model_entrypoint(name).__module__.startswith("lambdanets"))


def create_model(
    name: str, pretrained: str | os.PathLike[str] | bool | None = None, num_classes: int | None = None, **overrides: Any
) -> nn.Module:
    """Create a model of this package or of timm by name.

    Args:
        name: a name in `list_models()` or `timm.list_models()`; "timm/NAME" for a model of timm whose lambda layers are
            replaced by layers of this package (see `adopt`); or "local-dir:FOLDER" or "hf-hub:USER/NAME" for a model
            saved by `save_pretrained` or by timm, whose lambda layers are replaced too.
        pretrained: default None for random initialization. The name of a trained model of the package, such as
            "cifar10", or the path of a run folder, a .safetensors file or a checkpoint, also of other training code;
            a classifier of this name gives the default options. True for the weights of the folder, the hub or timm.
        num_classes: number of classes; 0 for no classifier. Default None for that of the folder, hub or trained model,
            or else 1000, or 2 for a U-Net. For another number than the weights have, the classifier is random.
        overrides: constructor arguments of the model, such as scope=7, drop_path_rate=0.1, in_chans=1 or
            features_only=True. As in timm, weights of RGB images are summed for in_chans=1 and repeated for others.
            Embedding tables of weights with another scope are interpolated.

    Raises ValueError for an unknown name, with similar names, for an invalid override, or for weights that do not fit
    the model.
    """
    full_name, name = name, name.removeprefix(ADOPTED_PREFIX)
    architecture = timm_name = name
    if ":" in name:
        folder = local_path(name)
        architecture = read_hub_config(folder)[1]
        timm_name = f"local-dir:{folder}"
    else:
        check_architecture(name)
    pretrained = overrides.pop("checkpoint_path", None) or pretrained
    weights: dict[str, Tensor] = {}
    if isinstance(pretrained, str | os.PathLike):
        source = find_weights(pretrained)
        weights, metadata = read_weights(source.file)
        card = json.loads(text) if isinstance(text := metadata.get("lambdanets"), str) else {}  # not of other code
        if card.get("task") == "classification" and card.get("model") == full_name:
            check_architecture(name, card["model_options"])
            overrides = {"in_chans": card["preprocessing"]["channels"]} | card["model_options"] | overrides
            num_classes = len(card["classes"]) if num_classes is None else num_classes
        elif source.file.parent == FOLDER:
            kind = f"a {card['task']} model with {card['model']}"
            raise InputError(f"pretrained must be weights of a {full_name} classifier, got {source.name!r}, {kind}")
    if "normalize_keys" in overrides and overrides["normalize_keys"] is None:
        overrides["normalize_keys"] = "none"  # timm drops options that are None
    try:
        model = timm.create_model(timm_name, pretrained=pretrained is True, num_classes=num_classes, **overrides)
    except Exception as error:  # timm's constructors and loaders raise many types of exceptions
        unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if unknown and unknown[1] in overrides:
            hint = nearest_hint(unknown[1], _option_names(architecture))
            raise InputError(f"{name} has no option {unknown[1]!r}{hint}") from error
        options = f" with {overrides}" if overrides else ""
        raise InputError(f"{name} cannot be built{options}: {one_line(error)}") from error
    adopts = full_name != name or (":" in name and foreign_layers(model))
    if adopts and weights:  # they may be those of the adopted network
        weights = match_names(weights, model.state_dict(), str(pretrained))
        classifiers = tuple(f"{name}." for name in module_names(model, "classifier"))
        if any(name not in weights and not name.startswith(classifiers) for name in model.state_dict()):
            adopt(model)
            adopts = False
    if weights:
        is_part, new_heads = bool(overrides.get("features_only")), None if num_classes else num_classes == 0
        weights = adapt_weights(weights, model, str(pretrained), new_heads=new_heads, is_part=is_part)
        load_tensors(model, weights, str(pretrained))
    if adopts:
        adopt(model)
    return model


def _option_names(name: str) -> set[str]:
    """Return the names of the arguments of a model: of its function, its class and the base classes."""
    with torch.device("meta"):
        network = type(timm.create_model(name))
    signatures = map(inspect.signature, (model_entrypoint(name), *network.__mro__[:-1]))  # without object
    parameters = [each for signature in signatures for each in signature.parameters.values()]
    names = {each.name for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)}
    return names.union(getattr(network, "LAYER_OPTIONS", ()))


def check_architecture(name: str, options: Iterable[str] = ()) -> None:
    """Raise InputError unless a name is that of a model of this package or of timm, and options are arguments of it.

    options: names of arguments. For files of others: arguments that load weights from other places are refused.
    """
    name = name.removeprefix(ADOPTED_PREFIX)
    if not re.fullmatch(r"[\w.-]+", name) or not timm.is_model(name):
        similar = nearest_hint(name, timm.list_models(), 3)
        raise InputError(f"there is no model named {name!r}{similar or '; lambdanets.list_models() returns all'}")
    if invalid := sorted(_LOADING_ARGUMENTS.intersection(options)):
        raise InputError(
            f"model options must be arguments of the architecture {name}, got {', '.join(invalid)}; to start from "
            "trained weights, save the network's state dict as a .safetensors file and pass that file as weights"
        )


def read_hub_config(folder: Path) -> tuple[dict[str, Any], str, dict[str, Any]]:
    """Read config.json of a folder in timm's hub format: timm's pretrained_cfg, the name and arguments of the model.

    Raises InputError if it is invalid or names anything but an architecture, its arguments and its preprocessing.
    """
    try:
        config, name, options = load_model_config_from_path(folder)
        options = {key: value for key, value in options.items() if value is not False or key not in _LOADING_ARGUMENTS}
        check_architecture(name, options)
    except Exception as error:  # a changed file may raise any exception in timm
        raise InputError(f"{folder / CONFIG} is not a configuration of timm: {one_line(error)}") from error
    return config, name, options
