"""A trained model from its file, whatever its task."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from lambdanets.device import as_device
from lambdanets.errors import InputError
from lambdanets.inference.model_card import ClassifierCard, DetectorCard
from lambdanets.inference.weights import read_model_file

if TYPE_CHECKING:
    from lambdanets.inference.classifier import Classifier
    from lambdanets.inference.detector import Detector


def load(path: str | os.PathLike[str], *, device: str | torch.device | None = None) -> "Classifier | Detector":
    """The trained classifier or detector in the folder of a run, in weights.safetensors or in a checkpoint (.ckpt).

    path: of a folder, weights.safetensors is loaded, or checkpoints/last.ckpt where the run has not finished.
    device: such as "cpu" or "cuda:1"; by default the GPU if there is one.

    Raises InputError for a file that a run did not leave, for weights that do not fit, and for a device that is not
    there.
    """
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"path must be a folder of a run or a file of weights, got {path!r}")
    there = as_device(device)
    tensors, card = read_model_file(Path(path), ClassifierCard, DetectorCard)
    if isinstance(card, ClassifierCard):
        from lambdanets.inference.classifier import Classifier

        return Classifier.from_weights(card, tensors, str(path), there)
    assert isinstance(card, DetectorCard)
    from lambdanets.inference.detector import Detector

    return Detector.from_weights(card, tensors, str(path), there)
