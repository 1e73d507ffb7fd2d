"""Loading of trained classifiers and detectors."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from lambdanets.device import resolve_device
from lambdanets.errors import InputError
from lambdanets.inference.model_card import ClassifierCard, DetectorCard
from lambdanets.inference.weights import read_model_file

if TYPE_CHECKING:
    from lambdanets.inference.classifier import Classifier
    from lambdanets.inference.detector import Detector


def load(path: str | os.PathLike[str], *, device: str | torch.device | None = None) -> "Classifier | Detector":
    """Load a trained classifier or detector from a run folder, weights.safetensors or a checkpoint (.ckpt).

    path: of the file or run folder, or the name of a trained model in the package, such as "nuclei". In a run folder,
        weights.safetensors is loaded, or checkpoints/last.ckpt if the run is unfinished.
    device: such as "cpu" or "cuda:1"; by default the GPU if there is one.

    Raises InputError for a file without a model card, for weights that do not match the card, and for a device that
    does not exist.
    """
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"path must be a run folder or a weight file, got {path!r}")
    resolved = resolve_device(device)
    tensors, card = read_model_file(Path(path), ClassifierCard, DetectorCard)
    if isinstance(card, ClassifierCard):
        from lambdanets.inference.classifier import Classifier

        return Classifier.from_weights(card, tensors, str(path), resolved)
    assert isinstance(card, DetectorCard)
    from lambdanets.inference.detector import Detector

    return Detector.from_weights(card, tensors, str(path), resolved)
