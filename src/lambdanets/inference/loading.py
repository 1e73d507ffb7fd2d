"""Loading of trained models of any task."""

import importlib
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from lambdanets.device import resolve_device
from lambdanets.errors import InputError
from lambdanets.inference.model_card import ClassifierCard, DetectorCard, ModelCard, SegmenterCard
from lambdanets.inference.weights import read_model_file

if TYPE_CHECKING:
    from lambdanets.inference.classifier import Classifier
    from lambdanets.inference.detector import Detector
    from lambdanets.inference.segmenter import Segmenter

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
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"path must be a run folder or a weight file, got {path!r}")
    return load_one_of(_MODELS, path, device)


def load_one_of(
    card_types: Iterable[type[ModelCard]], path: str | os.PathLike[str], device: str | torch.device | None = None
) -> Any:
    """Load a model as `load` does. Raises InputError if its card has none of these types."""
    resolved = resolve_device(device)
    tensors, card = read_model_file(path, *card_types)
    module, _, name = _MODELS[type(card)].partition(":")
    return getattr(importlib.import_module(module), name).from_weights(card, tensors, str(path), resolved)
