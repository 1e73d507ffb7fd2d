"""Loading of trained models of any task."""

import importlib
import json
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lambdanets.device import resolve_device
from lambdanets.inference.hub_folder import read_source
from lambdanets.inference.model_card import Card, ClassifierCard, DetectorCard, ModelCard, SegmenterCard, read_card
from lambdanets.models.weights import WeightSource, find_weights
from lambdanets.records import reraise_as_input_error

if TYPE_CHECKING:
    from lambdanets.inference.classifier import Classifier
    from lambdanets.inference.detector import Detector
    from lambdanets.inference.segmenter import Segmenter

RECIPE = "recipe.json"  # in run folders

# "module:class" of the trained model for each card, imported on first use.
_MODELS: dict[type[ModelCard], str] = {
    ClassifierCard: "lambdanets.inference.classifier:Classifier",
    DetectorCard: "lambdanets.inference.detector:Detector",
    SegmenterCard: "lambdanets.inference.segmenter:Segmenter",
}


def load(
    path: str | os.PathLike[str], *, device: str | torch.device | None = None
) -> "Classifier | Detector | Segmenter":
    """Load a trained classifier, detector or segmenter from a run folder, weights.safetensors or a checkpoint (.ckpt).

    path: a file, a run folder, or the name of a trained model in the package, such as "nuclei". In a run folder,
        weights.safetensors is loaded, or checkpoints/last.ckpt if the run is unfinished.
    device: such as "cpu" or "cuda:1"; by default the GPU if there is one.

    Raises InputError for a file without a model card, for weights that do not match the card, and for a device that
    does not exist.
    """
    return load_one_of(_MODELS, path, device)


def load_one_of(
    card_types: Iterable[type[ModelCard]],
    path: str | os.PathLike[str] | WeightSource,
    device: str | torch.device | None = None,
) -> Any:
    """Load a model as `load` does. Raises InputError if its card has none of these types."""
    resolved, source = resolve_device(device), find_weights(path)
    tensors, card = read_model(source, *card_types)
    module, _, name = _MODELS[type(card)].partition(":")
    return getattr(importlib.import_module(module), name).from_weights(card, tensors, source.name, resolved)


def read_model(source: WeightSource, *card_types: type[Card]) -> tuple[dict[str, Tensor], Card]:
    """Read the weights of a source and their card. Raises InputError if it has none of these types."""
    tensors, metadata = read_source(source)
    file = source.file
    card = read_card(file, metadata, *card_types)
    run = file.parent.parent if file.parent.name == "checkpoints" else file.parent
    if (run / RECIPE).is_file():  # weight files do not name the data of the user
        with reraise_as_input_error(f"{run / RECIPE} is damaged"):
            card = card.with_data(json.loads((run / RECIPE).read_bytes()))
    return tensors, card
