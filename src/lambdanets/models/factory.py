"""Create models by name."""

import inspect
import os
import re
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import timm
import torch
from timm.models import build_model_with_cfg, is_model_pretrained, model_entrypoint
from timm.models._hub import load_model_config_from_path
from torch import nn

from lambdanets.adoption import adopt, has_foreign_layers
from lambdanets.errors import InputError, did_you_mean, nearest_hint, one_line
from lambdanets.models.packaged import (
    CONFIG,
    FOLDER,
    find_weights,
    is_hub_folder,
    local_path,
    packaged_arguments,
    packaged_models,
)
from lambdanets.models.weights import load_tensors, match_names, read_weights

# Arguments of timm's feature extraction, which a classifier does not have.
_FEATURE_ARGUMENTS = ("features_only", "out_indices", "feature_cls", "output_fmt", "flatten_sequential")
# Arguments of timm's functions that load weights, from files or URLs, which are not arguments of an architecture.
_LOADING_ARGUMENTS = {
    *_FEATURE_ARGUMENTS,
    *(
        name
        for function in (timm.create_model, build_model_with_cfg)
        for name in inspect.signature(function).parameters
    ),
} - {"kwargs"}
ADOPTED_PREFIX = "timm/"  # of the names of timm models whose lambda layers are adopted


def list_models() -> list[str]:
    """Return the sorted names of the models of this package. timm.list_models() includes them too."""
    return sorted(filter(_is_own, timm.list_models()))


def _is_own(name: str) -> bool:
    return model_entrypoint(name).__module__.startswith("lambdanets")


def create_model(
    name: str, pretrained: str | os.PathLike[str] | bool | None = None, num_classes: int | None = None, **overrides: Any
) -> nn.Module:
    """Create a model of this package or of timm by name.

    Args:
        name: a name in `list_models()` or `timm.list_models()`; "timm/NAME" for a model of timm whose lambda layers are
            replaced by layers of this package (see `adopt`); or "local-dir:FOLDER" or "hf-hub:USER/NAME" for a model
            saved by `save_pretrained` or by timm, whose lambda layers are replaced too.
        pretrained: default None for random initialization. The name of a trained model that comes with the package,
            such as "cifar10", whose model options then become the defaults. The path of a run folder, a .safetensors
            file or a checkpoint, also of other training code. True for the weights of the folder or hub, or of timm.
        num_classes: number of classes; 0 for no classifier. Default None for the number saved in the folder or hub or
            of the trained model; for other names 1000, or 2 for a U-Net. If it differs from that of a trained model,
            the classifier is randomly initialized.
        overrides: constructor arguments of the model, such as scope=7, drop_path_rate=0.1, in_chans=1 or
            features_only=True.

    Raises ValueError for an unknown name, with similar names, for an invalid override, or for weights that do not fit
    the model.
    """
    full_name, name = name, name.removeprefix(ADOPTED_PREFIX)
    timm_name = name
    if ":" not in name:
        check_architecture(name)
    elif is_hub_folder(folder := local_path(name)):
        read_hub_config(folder)
        timm_name = f"local-dir:{folder}"
    if pretrained is True and name.split(".")[0] in list_models():
        _check_has_weights(name.split(".")[0])
    num_trained_classes = num_classes
    if isinstance(pretrained, str | os.PathLike):
        pretrained = find_weights(pretrained)
        if pretrained.parent == FOLDER:
            arguments = packaged_arguments(pretrained, full_name)
            num_trained_classes = arguments.pop("num_classes")
            overrides = arguments | overrides
            num_classes = num_trained_classes if num_classes is None else num_classes
    checkpoint = overrides.get("checkpoint_path")
    if checkpoint and not Path(checkpoint).is_file():
        raise InputError(f"checkpoint_path must be an existing file, got '{checkpoint}'")
    if "normalize_keys" in overrides and overrides["normalize_keys"] is None:
        overrides["normalize_keys"] = "none"  # timm drops options that are None
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*pickle protocol.*please file an issue.*")
            model = timm.create_model(timm_name, pretrained=pretrained is True, num_classes=num_classes, **overrides)
    except Exception as error:  # timm's constructors and loaders raise many types of exceptions
        unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if unknown:
            suggestion = did_you_mean(unknown[1], constructor_arguments(name))
            raise InputError(f"{name} takes no argument {unknown[1]!r}{suggestion}") from error
        reason = one_line(error)
        if "weights_only" in reason:  # torch and timm suggest disabling it, which could run code from the file
            reason = "checkpoint_path must contain only tensors; the file is corrupt or contains code"
        options = f" with {overrides}" if overrides else ""
        raise InputError(f"{name} cannot be built{options}: {reason}") from error
    copies_features = isinstance(pretrained, Path) and overrides.get("features_only")
    weights = read_weights(pretrained)[0] if isinstance(pretrained, Path) and not copies_features else {}
    skip = model.pretrained_cfg["classifier"] if weights and num_classes != num_trained_classes else ""
    if full_name != name or (":" in name and has_foreign_layers(model)):
        names = model.state_dict().keys()
        if names <= match_names(weights, names, str(pretrained)).keys():  # weights of timm's network
            load_tensors(model, weights, str(pretrained), skip)
            weights = {}
        adopt(model)
    if weights:
        load_tensors(model, weights, str(pretrained), skip)
    if copies_features:
        others = {key: value for key, value in overrides.items() if key not in _FEATURE_ARGUMENTS}
        trained = create_model(full_name, pretrained=pretrained, num_classes=num_trained_classes, **others)
        _copy_features(trained, model, name)
    return model


def _copy_features(trained: nn.Module, features: nn.Module, name: str) -> None:
    """Copy the weights of a classifier to the same network built with features_only=True, which has only its stages.

    timm's wrappers of some networks add the prefix "model." or replace points in names by underscores.
    """
    tensors = {key.replace(".", "_"): tensor for key, tensor in trained.state_dict().items()}
    keys = {key: key.replace(".", "_") for key in features.state_dict()}
    if not set(keys.values()) <= tensors.keys():
        keys = {key: renamed.removeprefix("model_") for key, renamed in keys.items()}
    if unknown := [key for key, renamed in keys.items() if renamed not in tensors]:
        raise InputError(
            f"features_only must be False to load a weight file into {name}, got True; timm renames {unknown[0]}"
        )
    features.load_state_dict({key: tensors[renamed] for key, renamed in keys.items()})


def check_architecture(name: str, options: Iterable[str] = ()) -> None:
    """Raise InputError unless a name is that of a model of this package or of timm, and options are arguments of it.

    options: names of arguments. For files of others: arguments that load weights from other places are refused.
    """
    name = name.removeprefix(ADOPTED_PREFIX)
    if not re.fullmatch(r"[\w.-]+", name) or not timm.is_model(name.split(".")[0]):
        raise InputError(unknown_model_message(name))
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


def constructor_arguments(name: str) -> list[str]:
    """Return the names of the constructor arguments of a model of this package; [] for other models."""
    if not (timm.is_model(name) and _is_own(name)):
        return []
    with torch.device("meta"):
        network = timm.create_model(name)
    functions = (model_entrypoint(name), *type(network).__mro__)
    parameters = [each for function in functions for each in inspect.signature(function).parameters.values()]
    return [each.name for each in parameters if each.kind is not each.VAR_KEYWORD and each.name != "pretrained"]


def _check_has_weights(name: str) -> None:
    """Raise ValueError, which explains how to load weights, unless the model has published weights."""
    available = [model for model in list_models() if is_model_pretrained(model)]
    if name not in available:
        raise InputError(
            f"pretrained must be a path for {name}, which has no published weights, or one of "
            f"{', '.join(packaged_models())}, which come with the package, got True; models with published weights: "
            f"{', '.join(available) or 'none yet'}; to load your own: pretrained=PATH, checkpoint_path=PATH, or the "
            "name 'local-dir:FOLDER' or 'hf-hub:USER/NAME' with pretrained=True"
        )


def unknown_model_message(name: str) -> str:
    """Return an error message that suggests similar models, of this package first, else of timm."""
    own_models = list_models()
    similar = nearest_hint(name, own_models, 3) or nearest_hint(name, timm.list_models(), 3)
    return f"there is no model named {name!r}{similar or '; this package has ' + ', '.join(own_models)}"
