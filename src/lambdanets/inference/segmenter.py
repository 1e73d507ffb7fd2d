"""Trained segmenters and the semantic masks that they predict."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lambdanets.data.coco.annotations import Category
from lambdanets.data.coco.loader import image_to_tensor
from lambdanets.inference.inputs import ImageInputs, image_batches
from lambdanets.inference.model_card import SegmenterCard
from lambdanets.inference.predictor import Predictor
from lambdanets.inference.tiles import blend_tiles, is_tiled
from lambdanets.models import create_model
from lambdanets.models.weights import build_with_weights
from lambdanets.records import TileSize, check

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
class Segmenter(Predictor):
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
        model = build_with_weights(lambda: build_segmenter(card), dict(tensors), source)
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
        self,
        images: ImageInputs,
        *,
        batch_size: int = 1,
        tile_size: int | None = None,
        channel: int | None = None,
        device: str | torch.device | None = None,
    ) -> list[Segmentation]:
        """Segment images of any size, at their own resolution. Returns one segmentation per image, in the same order.

        images, channel, device: as in `Classifier.predict`.
        batch_size: images, or tiles of an image, per forward pass; only images of equal size share a batch.
        tile_size: side in pixels of overlapping tiles for images with a side of more than two tiles, at least 16; their
            probabilities are averaged in overlaps (see `blend_tiles`). None for no tiles.
        """
        if device is not None:
            self.to(device)
        return [
            segmentation
            for batch in image_batches(images, batch_size, channel=channel, stretch=self.card.stretch)
            for segmentation in self.segment(
                [image_to_tensor(image) for image in batch], tile_size=tile_size, batch_size=batch_size
            )
        ]

    @torch.inference_mode()
    def segment(
        self, images: Sequence[Tensor], *, tile_size: int | None = None, batch_size: int = 1
    ) -> list[Segmentation]:
        """Segment images (3, H, W) in [0, 1]. Images of the same size that are not tiled share a forward pass.

        tile_size: as in `predict`. batch_size: tiles per forward pass.
        """
        check("tile_size", tile_size, TileSize | None)
        by_size: dict[torch.Size, list[int]] = {}
        for index, image in enumerate(images):
            by_size.setdefault(image.shape, []).append(index)
        probabilities: dict[int, Tensor] = {}
        for shape, indices in by_size.items():
            if tile_size is not None and is_tiled(shape[1:], tile_size):
                for index in indices:
                    probabilities[index] = blend_tiles(
                        images[index], len(self.classes), tile_size, self._probabilities, batch_size
                    )
            else:
                batch = self._probabilities(torch.stack([images[index] for index in indices]))
                probabilities |= zip(indices, batch, strict=True)
        return [self._segmentation(probabilities[index]) for index in range(len(images))]

    def _probabilities(self, images: Tensor) -> Tensor:
        """Return the probabilities (B, classes, H, W) of images (B, 3, H, W), as float32 on the CPU."""
        images = images.to(next(self.model.parameters()).device)
        images = normalize(images, self.card.mean, self.card.std).contiguous(memory_format=torch.channels_last)
        return self.outputs(images).float().softmax(1).cpu()

    def _segmentation(self, probabilities: Tensor) -> Segmentation:
        return Segmentation(probabilities.contiguous(), probabilities.argmax(0).byte(), self.classes)


def normalize(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Subtract the mean of each channel from images (..., 3, H, W), and divide by its standard deviation."""
    means, stds = (images.new_tensor(values).view(-1, 1, 1) for values in (mean, std))
    return (images - means) / stds


def build_segmenter(card: SegmenterCard) -> nn.Module:
    """Build the model of a card with random weights, with one output per class and pixel."""
    options: dict[str, Any] = dict(card.model_options)
    model = create_model(card.model, num_classes=1 + len(card.classes), **options)
    return model.to(memory_format=torch.channels_last)  # faster convolutions on CPU and GPU
