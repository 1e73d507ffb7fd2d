"""A trained classifier: its model, its card, and the probabilities it gives."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
from PIL.Image import Image
from torch import Tensor, nn

from lambdanets.bounds import Range, check
from lambdanets.device import as_device
from lambdanets.errors import InputError
from lambdanets.inference.inputs import ImageInputs, image_batches, readable_batches
from lambdanets.inference.model_card import ClassifierCard
from lambdanets.inference.weights import read_model_file
from lambdanets.models import create_model
from lambdanets.models.weights import load_tensors


@dataclass(frozen=True, eq=False, repr=False)
class Prediction:
    """What a classifier says of one image: the probability of each class.

    classes: names, in the order of the probabilities (classes,), float32 on the CPU.
    """

    classes: tuple[str, ...]
    probabilities: Tensor

    @property
    def class_name(self) -> str:
        """The most probable class."""
        return self.classes[int(self.probabilities.argmax())]

    @property
    def confidence(self) -> float:
        """The probability of the most probable class."""
        return float(self.probabilities.max())

    def top(self, count: int = 5) -> list[tuple[str, float]]:
        """Names and probabilities of the most probable classes, most probable first; of fewer classes, all."""
        check("count", count, int, Range(1))
        best = self.probabilities.topk(min(count, len(self.classes)))
        return [(self.classes[i], p) for i, p in zip(best.indices.tolist(), best.values.tolist(), strict=True)]

    def __repr__(self) -> str:
        return f"Prediction({', '.join(f'{name} {probability:.3f}' for name, probability in self.top(3))})"


@dataclass(frozen=True)
class Classifier:
    """A trained classifier: a model in evaluation mode, and its card, as `lambdanets.load` gives them."""

    model: nn.Module
    card: ClassifierCard

    @classmethod
    def from_weights(
        cls, card: ClassifierCard, tensors: Mapping[str, Tensor], source: str, device: torch.device
    ) -> "Classifier":
        """The classifier of a card with these weights. Raises InputError, which names source, where they do not fit."""
        options: dict[str, Any] = dict(card.model_options)
        model = create_model(card.model, num_classes=len(card.classes), in_chans=card.preprocessing.channels, **options)
        load_tensors(model, dict(tensors), source)
        model.to(memory_format=torch.channels_last)  # in which convolutions are faster, on CPU and GPU
        return cls(model.to(device).eval(), card)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the probabilities."""
        return self.card.classes

    def predict(
        self, images: ImageInputs, *, batch_size: int = 32, device: str | torch.device | None = None
    ) -> list[Prediction]:
        """Classify images of any size, in their order.

        images: one or several paths, Pillow images of any mode, arrays (H, W, 3) or (H, W) of uint8, and tensors
            (3, H, W) or (1, H, W), uint8 or floating point in [0, 1]; a batch of arrays or tensors counts as several.
            They are prepared as `card.preprocessing` says: do not resize or normalize them.
        batch_size: images in one forward pass.
        device: moves the model there for this and later calls, such as "cpu" or "cuda:1".

        Raises InputError for a wrong argument, and for an image that cannot be read.
        """
        if device is not None:
            self.to(device)
        found: list[Prediction] = []
        for batch in image_batches(images, batch_size):
            found += self.predict_batch(batch)
        return found

    def predict_batch(self, images: list[Image]) -> list[Prediction]:
        """Classify images of mode "L" or "RGB" in one forward pass."""
        preprocessing = self.card.preprocessing
        transform = preprocessing.transform()
        prepared = torch.stack([transform(image.convert(preprocessing.mode)) for image in images])
        return [Prediction(self.classes, each) for each in self.probabilities(prepared)]

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

    def to(self, device: str | torch.device) -> Self:
        """Move the model, in place. Raises InputError for a device that is not there."""
        self.model.to(as_device(device))
        return self


def load_classifier(path: str | Path, model: str | None = None, device: str | torch.device | None = None) -> Classifier:
    """The classifier in weights.safetensors, in a checkpoint (.ckpt), or in the folder of a run.

    model: build this model instead of the one the file names. Weights that do not fit raise InputError with the names
    that differ, as does a file that does not say what it holds.
    """
    there = as_device(device)
    tensors, card = read_model_file(Path(path), ClassifierCard)
    return Classifier.from_weights(card if model is None else replace(card, model=model), tensors, str(path), there)


def predict_files(
    classifier: Classifier, paths: Sequence[Path], unreadable: list[str], batch_size: int = 1
) -> Iterator[tuple[Path, Prediction]]:
    """Classify image files of any mode, in their order; what cannot be read is added to `unreadable`."""
    for batch in readable_batches(paths, unreadable, batch_size):
        predictions = classifier.predict_batch([image for _, image in batch])
        yield from zip([path for path, _ in batch], predictions, strict=True)
