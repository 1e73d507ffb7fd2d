"""Trained segmenters, the semantic masks that they predict, and their evaluation on annotated datasets."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms.v2.functional import normalize

from lambdanets.data.coco.annotations import AnnotatedImage
from lambdanets.data.coco.images import make_semantic_mask
from lambdanets.files import atomic_write
from lambdanets.inference.coco_predictor import CocoPredictor
from lambdanets.inference.figures import overlay_classes
from lambdanets.inference.model_card import SegmenterCard
from lambdanets.inference.predictor import Evaluation, format_score, save_image
from lambdanets.inference.segmentation_scores import SCORES, ImageCounts, count_image, summarize
from lambdanets.inference.tiles import blend_tiles
from lambdanets.models import create_model
from lambdanets.terminal import csv_table, plural, text_table

COLUMNS = ("image", "label", "class", "pixels", "fraction")  # of classes.csv


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


class Segmenter(CocoPredictor):
    """A trained segmenter, which `lambdanets.load` returns. Its predictions are `Segmentation`."""

    card_type = SegmenterCard
    default_out = "segmentations"

    card: SegmenterCard

    @staticmethod
    def build(architecture: Any, num_classes: int) -> nn.Module:
        return create_model(architecture.model, **architecture.checked_options() | {"num_classes": 1 + num_classes})

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in order of the labels: "background", then those of the categories."""
        return "background", *self.card.classes

    def infer_tensors(self, images: Sequence[Tensor]) -> list[Segmentation]:
        """Segment images at their own resolution, in one forward pass if all have the same size."""
        have_one_size = len({image.shape for image in images}) == 1
        batches = [torch.stack([*images])] if have_one_size else [image[None] for image in images]
        device, found = next(self.model.parameters()).device, list[Segmentation]()
        for batch in batches:
            inputs = normalize(batch.to(device), [*self.card.mean], [*self.card.std])
            probabilities = self.finite_outputs(inputs.contiguous(memory_format=torch.channels_last)).softmax(1).cpu()
            found += map(self._segmentation, probabilities)
        return found

    def merge_tiles(self, tiles: Iterator[tuple[slice, slice, Segmentation]], size: tuple[int, int]) -> Segmentation:
        maps = ((rows, columns, tile.probabilities) for rows, columns, tile in tiles)
        return self._segmentation(blend_tiles(maps, (len(self.classes), *size)))

    def _segmentation(self, probabilities: Tensor) -> Segmentation:
        return Segmentation(probabilities.contiguous(), probabilities.argmax(0).byte(), self.classes)

    def write(
        self, prediction: Segmentation, image: Image.Image, number: int, stem: Path, options: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Write the figure and the semantic mask of an image; the row has the number of pixels of each class."""
        labels = prediction.labels.numpy()
        save_image(Image.fromarray(labels), stem.parent / "classes" / stem.name)
        if options["figures"]:
            save_image(overlay_classes(image, labels), stem)
        return {"pixels": [count for _, count in prediction.pixels]}

    def describe(self, row: Mapping[str, Any]) -> str:
        total = sum(row["pixels"])
        pixels = zip(self.classes, row["pixels"], strict=True)
        return ", ".join(f"{name} {count / total:.1%}" for name, count in pixels if count)

    def finish(self, rows: Sequence[Mapping[str, Any]], out: Path, options: Mapping[str, Any]) -> str:
        """Write classes.csv."""
        table = [
            (row["path"], label, name, pixels, f"{pixels / sum(row['pixels']):.6f}")
            for row in rows
            for label, (name, pixels) in enumerate(zip(self.classes, row["pixels"], strict=True))
        ]
        atomic_write(out / "classes.csv", csv_table([COLUMNS, *table]))
        return plural(len(rows), "image")

    def compare(self, prediction: Segmentation, annotated: AnnotatedImage) -> ImageCounts:
        return count_image(prediction.labels.numpy(), make_semantic_mask(annotated), len(self.classes))

    def score(self, measures: list[Any]) -> Evaluation:
        scores = summarize(((pixels, f1s) for _, pixels, f1s in measures), self.classes)
        rows = (*scores["classes"], scores | {"name": "mean without background"})
        table = [[row["name"], *(format_score(row[score]) for score in SCORES)] for row in rows]
        return Evaluation(
            scores={**scores, "images": len(measures)},
            metrics={name: scores[name] for name in SCORES},
            lines=text_table([["class", *SCORES], *table]).splitlines(),
            counts=plural(len(measures), "image"),
        )

    def render(
        self, image: Image.Image, annotated: AnnotatedImage, prediction: Segmentation
    ) -> tuple[Image.Image, Image.Image]:
        target = make_semantic_mask(annotated)
        return overlay_classes(image, target), overlay_classes(image, prediction.labels.numpy())
