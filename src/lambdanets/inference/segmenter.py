"""Trained segmenters and the semantic masks that they predict."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from lambdanets.data.coco.annotations import Category
from lambdanets.data.coco.loader import image_to_tensor
from lambdanets.device import resolve_device
from lambdanets.inference.inputs import ImageInputs, image_batches
from lambdanets.inference.model_card import SegmenterCard
from lambdanets.models import create_model
from lambdanets.models.weights import load_tensors

BACKGROUND_NAME = "background"


@dataclass(frozen=True, eq=False, repr=False)
class Segmentation:
    """Per-pixel classes of one image, at its own resolution, on the CPU.

    probabilities: (classes, H, W) float32.
    labels: (H, W) uint8, the most probable class of each pixel, as an index of `classes`.
    classes: "background", then the names of the categories.
    """

    probabilities: Tensor
    labels: Tensor
    classes: tuple[str, ...]

    @property
    def pixels(self) -> tuple[tuple[str, int], ...]:
        """The name and the number of pixels of each class."""
        counts = torch.bincount(self.labels.flatten().long(), minlength=len(self.classes))
        return tuple(zip(self.classes, counts.tolist(), strict=True))

    def __repr__(self) -> str:
        fractions = [f"{name} {count / self.labels.numel():.1%}" for name, count in self.pixels if count]
        height, width = self.labels.shape
        return f"Segmentation({', '.join([f'{height} x {width} pixels', *fractions])})"


@dataclass(frozen=True)
class Segmenter:
    """A trained segmenter, which `lambdanets.load` returns: a model in evaluation mode and its model card."""

    model: nn.Module
    card: SegmenterCard

    def __repr__(self) -> str:
        return f"Segmenter({self.card.model}, {len(self.classes)} classes)"

    @classmethod
    def from_weights(
        cls, card: SegmenterCard, tensors: Mapping[str, Tensor], source: str, device: torch.device
    ) -> "Segmenter":
        """Build a segmenter from its card and weights. Raises InputError, which names source, if they do not match."""
        model = build_segmenter(card)
        load_tensors(model, dict(tensors), source)
        return cls(model.to(device).eval(), card)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in order of the labels: "background", then those of the categories."""
        return BACKGROUND_NAME, *self.card.classes

    @property
    def categories(self) -> tuple[Category, ...]:
        """Categories (id and name), in order of the labels."""
        return tuple(map(Category, self.card.category_ids, self.card.classes))

    def predict(
        self, images: ImageInputs, *, batch_size: int = 1, device: str | torch.device | None = None
    ) -> list[Segmentation]:
        """Segment images of any size, at their own resolution. Returns one segmentation per image, in the same order.

        images, device: as in `Classifier.predict`.
        batch_size: images per forward pass; only images of equal size share a batch.
        """
        if device is not None:
            self.to(device)
        return [
            segmentation
            for batch in image_batches(images, batch_size, self.card.stretch)
            for segmentation in self.segment([image_to_tensor(image) for image in batch])
        ]

    @torch.inference_mode()
    def segment(self, images: Sequence[Tensor]) -> list[Segmentation]:
        """Segment images (3, H, W) in [0, 1]. Images of the same size share a forward pass."""
        device = next(self.model.parameters()).device
        by_size: dict[torch.Size, list[int]] = {}
        for index, image in enumerate(images):
            by_size.setdefault(image.shape, []).append(index)
        results: dict[int, Segmentation] = {}
        for indices in by_size.values():
            batch = torch.stack([images[index] for index in indices]).to(device)
            batch = normalize(batch, self.card.mean, self.card.std).contiguous(memory_format=torch.channels_last)
            probabilities = self.model(batch).float().softmax(1).cpu()
            labels = probabilities.argmax(1).byte()
            results |= {
                index: Segmentation(image_probabilities.contiguous(), image_labels, self.classes)
                for index, image_probabilities, image_labels in zip(indices, probabilities, labels, strict=True)
            }
        return [results[index] for index in range(len(images))]

    def to(self, device: str | torch.device) -> Self:
        """Move the model to a device, in place. Raises InputError if the device does not exist."""
        self.model.to(resolve_device(device))
        return self


def normalize(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Subtract the mean of each channel from images (..., 3, H, W), and divide by its standard deviation."""
    means, stds = (images.new_tensor(values).view(-1, 1, 1) for values in (mean, std))
    return (images - means) / stds


def build_segmenter(card: SegmenterCard) -> nn.Module:
    """Build the model of a card with random weights, with one output per class and pixel."""
    options: dict[str, Any] = dict(card.model_options)
    model = create_model(card.model, num_classes=1 + len(card.classes), **options)
    return model.to(memory_format=torch.channels_last)  # faster convolutions on CPU and GPU
