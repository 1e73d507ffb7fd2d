"""Loading of trained models of any task, from weight files and from folders in timm's hub format."""

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from timm.data import ImageNetInfo
from torch import Tensor

from lambdanets.adoption import adopt, foreign_layers
from lambdanets.device import resolve_device
from lambdanets.errors import InputError, one_line
from lambdanets.files import RECIPE
from lambdanets.inference.model_card import ModelCard, read_card
from lambdanets.inference.predictor import Predictor
from lambdanets.models import create_model
from lambdanets.models.factory import ADOPTED_PREFIX, read_hub_config
from lambdanets.models.weights import CONFIG, WeightSource, build_with_weights, find_weights, read_weights
from lambdanets.records import read_json
from lambdanets.registry import predictor_of


def load(path: str | os.PathLike[str] | WeightSource, *, device: str | torch.device | None = None) -> Predictor:
    """Load a trained classifier, detector or segmenter from a run folder, weights.safetensors or a checkpoint (.ckpt).

    Args:
        path: a file, a run folder, or the name of a trained model in the package, such as "nuclei". In a run folder,
            weights.safetensors is loaded, or checkpoints/last.ckpt if the run is unfinished.
        device: such as "cpu" or "cuda:1"; by default the GPU if there is one.

    Raises InputError for a file without a model card, for weights that do not match the card, and for a device that
    does not exist.
    """
    resolved, source = resolve_device(device), find_weights(path)
    tensors, card = read_model(source)
    model_type: type[Predictor] = predictor_of(card.task)
    model = build_with_weights(lambda: model_type.build(card, len(card.classes)), tensors, source.name)
    model.to(memory_format=torch.channels_last)  # faster convolutions on CPU and GPU
    return model_type(model.to(resolved).eval(), card)


def read_model(source: WeightSource) -> tuple[dict[str, Tensor], ModelCard]:
    """Read the weights of a source and their card. Raises InputError if it has none."""
    tensors, metadata = read_source(source)
    card, folder = read_card(source.file, metadata), source.file.parent
    recipe = (folder.parent if folder.name == "checkpoints" else folder) / RECIPE
    if recipe.is_file():  # weight files do not name the data of the user
        card = replace(card, recipe=read_json(recipe, dict[str, Any]))
    return tensors, card


def read_source(source: WeightSource) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and metadata of a weight file.

    A folder in timm's hub format is converted: a network of timm with lambda layers is named "timm/NAME", and its
    tensors are those after `adopt`.
    """
    tensors, metadata = read_weights(source.file)
    if not source.is_hub_format:
        return tensors, metadata
    folder = source.file.parent
    config, name, options = read_hub_config(folder)
    options = {**options, "num_classes": config.get("num_classes")}
    network = build_with_weights(lambda: create_model(name, **options), tensors, str(folder))
    try:
        own_card = metadata.get("lambdanets")
        card = {**(json.loads(own_card) if own_card else card_from_config(config, name, options)), "model": name}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{folder / CONFIG} is not a configuration of timm: {one_line(error)}") from error
    if foreign_layers(network):
        adopt(network)
        card["model"] = f"{ADOPTED_PREFIX}{name}"
    return network.state_dict(), {"lambdanets": json.dumps(card)}


def card_from_config(config: Mapping[str, Any], name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model card for timm's configuration. 1000 classes without names are assumed to be those of ImageNet."""
    channels, height, width = config["input_size"]
    if height != width:
        raise InputError(f"input_size must be square, got {height}x{width}")
    if config.get("crop_mode", "center") != "center":
        raise InputError(f"crop_mode must be center, got {config['crop_mode']}")
    count, classes = config["num_classes"], config.get("label_names")
    if not classes:
        classes = ImageNetInfo().label_names() if count == 1000 else [f"class {index}" for index in range(count)]
    if isinstance(classes, dict):  # by index, which JSON may have sorted as text
        classes = [classes[index] for index in sorted(classes, key=int)]
    shared = {name: config[name] for name in ("mean", "std", "crop_pct", "interpolation")}
    return {
        "task": "classification",
        "model": name,
        "classes": list(classes),
        "model_options": {key: value for key, value in options.items() if key not in ("in_chans", "num_classes")},
        "stretch": False,
        "preprocessing": {"image_size": height, "channels": channels} | shared,
        "recipe": {},
    }
