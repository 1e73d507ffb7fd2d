"""A trained classifier: its model, its card, and the probabilities it gives."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from PIL.Image import Image
from torch import Tensor, nn

from lambdanets.device import best_device
from lambdanets.errors import InputError
from lambdanets.inference.model_card import ClassifierCard
from lambdanets.inference.weights import read_model_file
from lambdanets.models import create_model
from lambdanets.models.weights import load_tensors


@dataclass(frozen=True)
class Classifier:
    """A model in evaluation mode on the best device, and its card."""

    model: nn.Module
    card: ClassifierCard

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the probabilities."""
        return self.card.classes

    def predict(self, image: Image) -> Tensor:
        """The probabilities (classes,) of an image of any size and mode, float32 on the CPU."""
        preprocessing = self.card.preprocessing
        return self.probabilities(preprocessing.transform()(image.convert(preprocessing.mode)).unsqueeze(0))[0]

    @torch.inference_mode()
    def probabilities(self, images: Tensor) -> Tensor:
        """The probabilities (b, classes) of preprocessed images (b, c, h, w), float32 on the CPU.

        Raises InputError where they are not finite, as of weights so large that the outputs overflow.
        """
        device = next(self.model.parameters()).device
        probabilities = self.model(images.to(device)).float().softmax(dim=1).cpu()
        if not probabilities.isfinite().all():
            raise InputError(f"the outputs of {self.card.model} must be finite, got NaN: its weights are damaged")
        return probabilities


def load_classifier(path: str | Path, model: str | None = None) -> Classifier:
    """The classifier in weights.safetensors, in a checkpoint (.ckpt), or in the folder of a run.

    model: build this model instead of the one the file names. Weights that do not fit raise InputError with the names
    that differ, as does a file that does not say what it holds.
    """
    tensors, card = read_model_file(Path(path), ClassifierCard)
    if model is not None:
        card = replace(card, model=model)
    options: dict[str, Any] = dict(card.model_options)
    built = create_model(card.model, num_classes=len(card.classes), in_chans=card.preprocessing.channels, **options)
    load_tensors(built, tensors, str(path))
    built.to(memory_format=torch.channels_last)  # in which convolutions are faster, on CPU and GPU
    return Classifier(built.to(best_device()).eval(), card)
