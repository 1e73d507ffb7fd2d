"""Reads model folders in timm's hub format, on disk or on the Hugging Face hub."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from timm.data import ImageNetInfo
from timm.models._hub import load_model_config_from_path
from torch import Tensor, nn

from lambdanets.adoption import adopt, has_foreign_layers
from lambdanets.errors import InputError, one_line
from lambdanets.models import create_model
from lambdanets.models.factory import ADOPTED_PREFIX
from lambdanets.models.weights import load_tensors, read_weights

CONFIG = "config.json"
HUB_WEIGHTS = ("model.safetensors", "pytorch_model.bin")


def is_hub_folder(folder: Path) -> bool:
    """Whether a folder has a config.json, as in timm's hub format; run folders have none."""
    return (folder / CONFIG).is_file()


def hub_weights(folder: Path) -> Path:
    """Return the weight file of a folder in timm's hub format."""
    for name in HUB_WEIGHTS:
        if (folder / name).is_file():
            return folder / name
    raise InputError(f"{folder} must have {' or '.join(HUB_WEIGHTS)} next to {CONFIG}, got neither")


def local_path(path: Path) -> Path:
    """Download "hf-hub:USER/NAME[@REVISION]" and return its folder; other paths are returned unchanged."""
    scheme, _, repo_id = str(path).partition(":")
    if scheme == "local-dir":
        return Path(repo_id)
    if scheme != "hf-hub":
        return path
    name, _, revision = repo_id.partition("@")
    try:
        return Path(snapshot_download(name, revision=revision or None, allow_patterns=[CONFIG, *HUB_WEIGHTS]))
    except Exception as error:  # the HTTP library and huggingface_hub raise exceptions of many types
        raise InputError(f"{path} cannot be downloaded: {one_line(error)}") from error


def read_hub_folder(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a folder in timm's hub format as a state dict for this package's layers, and metadata as in a weight file.

    A network of timm with lambda layers is named "timm/NAME", and its tensors are those after `adopt`.
    """
    network, card = load_network(folder)
    if has_foreign_layers(network):
        adopt(network)
        card["model"] = f"{ADOPTED_PREFIX}{card['model']}"
    return network.state_dict(), {"lambdanets": json.dumps(card)}


def load_network(folder: Path) -> tuple[nn.Module, dict[str, Any]]:
    """Build the network of a folder in timm's hub format and load its weights. Also returns its model card."""
    tensors, metadata = read_weights(hub_weights(folder))
    try:
        config, name, options = load_model_config_from_path(folder)
        card_json = metadata.get("lambdanets")
        card = json.loads(card_json) if card_json else card_from_config(config, name, options)
        network = create_model(name, **{**options, "num_classes": len(card["classes"])})
    except Exception as error:  # a changed file may raise any exception in timm
        raise InputError(f"{folder / CONFIG} is not a configuration of timm: {one_line(error)}") from error
    card["model"] = name
    load_tensors(network, tensors, str(folder))
    return network, card


def card_from_config(config: Mapping[str, Any], name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model card for timm's configuration. 1000 classes without names are assumed to be those of ImageNet."""
    channels, height, width = config["input_size"]
    if height != width:
        raise ValueError(f"input_size must be square, got {height}x{width}")
    num_classes = config["num_classes"]
    classes = config.get("label_names")
    if not classes:
        classes = ImageNetInfo().label_names() if num_classes == 1000 else [f"class {i}" for i in range(num_classes)]
    return {
        "task": "classification",
        "model": name,
        "classes": list(classes.values() if isinstance(classes, dict) else classes),
        "model_options": {key: value for key, value in options.items() if key not in ("in_chans", "num_classes")},
        "preprocessing": {
            "image_size": height,
            "channels": channels,
            "mean": config["mean"],
            "std": config["std"],
            "crop_pct": config["crop_pct"],
            "interpolation": config["interpolation"],
        },
        "recipe": {},
    }
