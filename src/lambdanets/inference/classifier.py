"""Trained classifiers and their predictions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL.Image import Image
from pydantic import PositiveInt
from torch import Tensor, nn

from lambdanets.errors import InputError
from lambdanets.inference.inputs import ImageInputs, image_batches, readable_batches
from lambdanets.inference.model_card import ClassifierCard
from lambdanets.inference.predictor import Predictor
from lambdanets.models import create_model
from lambdanets.models.weights import build_with_weights
from lambdanets.records import check


@dataclass(frozen=True, eq=False, repr=False)
class Prediction:
    """Class probabilities of one image.

    classes: class names. probabilities: (classes,), float32 on the CPU.
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
        """Return names and probabilities of the `count` most probable classes, in descending order."""
        check("count", count, PositiveInt)
        best = self.probabilities.topk(min(count, len(self.classes)))
        return [(self.classes[i], p) for i, p in zip(best.indices.tolist(), best.values.tolist(), strict=True)]

    def __repr__(self) -> str:
        return f"Prediction({', '.join(f'{name} {probability:.3f}' for name, probability in self.top(3))})"


@dataclass(frozen=True)
class Classifier(Predictor):
    """A trained classifier, which `lambdanets.load` returns: a model in evaluation mode and its model card."""

    model: nn.Module
    card: ClassifierCard

    def __repr__(self) -> str:
        return f"Classifier({self.card.model}, {len(self.classes)} classes)"

    @classmethod
    def from_weights(
        cls, card: ClassifierCard, tensors: Mapping[str, Tensor], source: str, device: torch.device
    ) -> "Classifier":
        """Build a classifier from its card and weights. Raises InputError, which names source, if they do not match."""
        options: dict[str, Any] = dict(card.model_options)
        options |= {"num_classes": len(card.classes), "in_chans": card.preprocessing.channels}
        model = build_with_weights(lambda: create_model(card.model, **options), dict(tensors), source)
        model.to(memory_format=torch.channels_last)  # faster convolutions on CPU and GPU
        return cls(model.to(device).eval(), card)

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names, in the order of the probabilities."""
        return self.card.classes

    def predict(
        self,
        images: ImageInputs,
        *,
        batch_size: int = 32,
        channel: int | None = None,
        device: str | torch.device | None = None,
    ) -> list[Prediction]:
        """Classify images of any size. Returns one prediction per image, in the same order.

        images: an image or several: paths, Pillow images of any mode, uint8 arrays (H, W, 3) or (H, W), or tensors
            (3, H, W) or (1, H, W) of uint8 or of floating point in [0, 1]. Arrays and tensors with 4 dimensions are
            several images. They are preprocessed as in `card.preprocessing`: do not resize or normalize them.
        batch_size: images per forward pass.
        channel: index of the channel, plane or color to use; files with several need one, except color images.
        device: such as "cpu" or "cuda:1"; moves the model to it, also for later calls.

        Raises InputError for an invalid argument or an unreadable image.
        """
        if device is not None:
            self.to(device)
        predictions: list[Prediction] = []
        for batch in image_batches(images, batch_size, channel=channel, stretch=self.card.stretch):
            predictions += self.predict_batch(batch)
        return predictions

    def predict_batch(self, images: list[Image]) -> list[Prediction]:
        """Classify images of mode "L" or "RGB" in one forward pass."""
        preprocessing = self.card.preprocessing
        transform = preprocessing.transform()
        batch = torch.stack([transform(image.convert(preprocessing.mode)) for image in images])
        return [Prediction(self.classes, probabilities) for probabilities in self.probabilities(batch)]

    def probabilities(self, images: Tensor) -> Tensor:
        """Return class probabilities (b, classes) of preprocessed images (b, c, h, w), float32 on the CPU.

        Raises InputError if they are NaN or inf, for example because the weights are damaged.
        """
        return self.logits(images).softmax(dim=1)

    @torch.inference_mode()
    def logits(self, images: Tensor) -> Tensor:
        """Return the outputs for preprocessed images as `probabilities` does, before the softmax."""
        logits = self.outputs(images).float().cpu()
        if not logits.isfinite().all():
            raise InputError(f"the outputs of {self.card.model} must be finite, got NaN: its weights are damaged")
        return logits


def predict_files(
    classifier: Classifier,
    paths: Sequence[Path],
    unreadable: list[str],
    batch_size: int = 1,
    *,
    channel: int | None = None,
    stretch: bool | None = None,
) -> Iterator[tuple[Path, Prediction]]:
    """Yield path and prediction of each readable image file; messages about the others are added to `unreadable`.

    channel, stretch: as in `read_image`; stretch is by default that of the model card.
    """
    stretch = classifier.card.stretch if stretch is None else stretch
    for batch in readable_batches(paths, unreadable, batch_size, channel=channel, stretch=stretch):
        predictions = classifier.predict_batch([image for _, image in batch])
        yield from zip([path for path, _ in batch], predictions, strict=True)
