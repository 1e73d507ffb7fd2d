"""Trained segmenters, the semantic masks that they predict, and their evaluation on annotated datasets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms.v2.functional import normalize

from lambdanets.data.batches import Batch
from lambdanets.data.coco.annotations import AnnotatedImage
from lambdanets.data.coco.images import SEMANTIC_MASK, image_to_tensor, load_with_semantic_mask, make_semantic_mask
from lambdanets.files import atomic_write, encode_utf8
from lambdanets.inference.coco_predictor import CocoEvaluation, CocoEvaluator, CocoPredictor
from lambdanets.inference.evaluator import format_score
from lambdanets.inference.model_card import SegmenterCard
from lambdanets.inference.options import MaskOptions
from lambdanets.inference.predictor import numbered_name, save_image
from lambdanets.inference.segmentation_scores import SCORES, SegmentationScores, count_image, summarize
from lambdanets.inference.tiles import blend_tiles
from lambdanets.models import create_model
from lambdanets.terminal import csv_table, text_table

BACKGROUND_NAME = "background"
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


@dataclass(frozen=True, eq=False, repr=False)
class SegmentationEvaluation(CocoEvaluation):
    """Dice, IoU and boundary F1 of a segmenter."""

    scores: SegmentationScores

    def metrics(self) -> dict[str, float | None]:
        return self.scores.means()

    def lines(self) -> list[str]:
        scores = self.scores.to_dict()
        rows = [["class", *SCORES]]
        for row in (*scores["classes"], scores | {"name": "mean without background"}):
            rows.append([row["name"], *(format_score(row[score]) for score in SCORES)])
        return text_table(rows).splitlines()


class SegmentationEvaluator(CocoEvaluator):
    """Measures the `ImageCounts` of each image. Only images of equal size share a forward pass."""

    predictor: "Segmenter"
    load = staticmethod(load_with_semantic_mask)

    # images differ in size, and --compile would compile the model again for many sizes
    @torch.compiler.set_stance("force_eager")
    def measure(self, batch: Batch) -> list[Any]:
        segmentations, count = self.predictor.infer_tensors(batch.images), len(self.predictor.classes)
        return [
            count_image(index, found.labels.numpy(), target[SEMANTIC_MASK].cpu().numpy(), count)
            for index, found, target in zip(batch.indices.tolist(), segmentations, batch.targets, strict=True)
        ]

    def score(self, measures: list[Any], unreadable: list[str]) -> SegmentationEvaluation:
        readable = sorted(counts.image_index for counts in measures)
        scores = summarize(measures, self.predictor.classes)
        return SegmentationEvaluation(scores, readable, unreadable)

    def render(self, image: Image.Image, annotated: AnnotatedImage) -> tuple[Image.Image, Image.Image]:
        from lambdanets.inference.drawing import overlay_classes

        (predicted,) = self.predictor.infer([image])
        target = make_semantic_mask(annotated)
        return overlay_classes(image, target), overlay_classes(image, predicted.labels.numpy())


class Segmenter(CocoPredictor):
    """A trained segmenter, which `lambdanets.load` returns. Its predictions are `Segmentation`."""

    card_type = SegmenterCard
    evaluator_type = SegmentationEvaluator
    output = "segmentations"

    card: SegmenterCard

    @staticmethod
    def build(architecture: Any, num_classes: int, **training_options: Any) -> nn.Module:
        options = architecture.checked_options() | training_options
        return create_model(architecture.model, num_classes=1 + num_classes, **options)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in order of the labels: "background", then those of the categories."""
        return BACKGROUND_NAME, *self.card.classes

    def infer_tensors(self, images: Sequence[Tensor]) -> list[Segmentation]:
        """Segment images at their own resolution. Only images of equal size share a forward pass."""
        by_size: dict[torch.Size, list[int]] = {}
        for index, image in enumerate(images):
            by_size.setdefault(image.shape, []).append(index)
        probabilities: dict[int, Tensor] = {}
        for indices in by_size.values():
            batch = self._probabilities(torch.stack([images[index] for index in indices]))
            probabilities |= zip(indices, batch, strict=True)
        return [self._segmentation(probabilities[index]) for index in range(len(images))]

    def infer_tiles(self, image: Image.Image, tile_size: int, batch_size: int) -> Segmentation:
        num_classes, tensor = len(self.classes), image_to_tensor(image)
        return self._segmentation(blend_tiles(tensor, num_classes, tile_size, self._probabilities, batch_size))

    def _probabilities(self, images: Tensor) -> Tensor:
        """Return the probabilities (B, classes, H, W) of images (B, 3, H, W), as float32 on the CPU."""
        images = images.to(next(self.model.parameters()).device)
        images = normalize(images, [*self.card.mean], [*self.card.std]).contiguous(memory_format=torch.channels_last)
        return self.outputs(images).float().softmax(1).cpu()

    def _segmentation(self, probabilities: Tensor) -> Segmentation:
        return Segmentation(probabilities.contiguous(), probabilities.argmax(0).byte(), self.classes)

    def write(
        self, prediction: Segmentation, image: Image.Image, path: Path, number: int, out: Path, options: MaskOptions
    ) -> dict[str, Any]:
        """Write the figure and the semantic mask of an image; the row has the number of pixels of each class."""
        name, labels = f"{numbered_name(number, path)}.png", prediction.labels.numpy()
        save_image(Image.fromarray(labels), out / "classes" / name)
        if options.figures:
            from lambdanets.inference.drawing import overlay_classes

            save_image(overlay_classes(image, labels), out / name)
        return {"pixels": [count for _, count in prediction.pixels]}

    def describe(self, row: Mapping[str, Any]) -> str:
        total = sum(row["pixels"])
        pixels = zip(self.classes, row["pixels"], strict=True)
        return ", ".join(f"{name} {count / total:.1%}" for name, count in pixels if count)

    def finish(self, rows: Sequence[Mapping[str, Any]], out: Path, options: MaskOptions) -> str:
        """Write classes.csv."""
        table = [
            (row["path"], label, name, pixels, f"{pixels / sum(row['pixels']):.6f}")
            for row in rows
            for label, (name, pixels) in enumerate(zip(self.classes, row["pixels"], strict=True))
        ]
        atomic_write(out / "classes.csv", encode_utf8(csv_table([COLUMNS, *table])))
        return f"{len(rows)} images"
