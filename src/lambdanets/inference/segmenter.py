"""Trained segmenters, the semantic masks that they predict, and their evaluation on annotated datasets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from lambdanets.data.batches import Batch
from lambdanets.data.coco.loader import SEMANTIC_MASK, image_to_tensor, load_with_semantic_mask
from lambdanets.data.transforms import normalize
from lambdanets.files import atomic_open, atomic_write, encode_utf8
from lambdanets.inference.coco_predictor import CocoEvaluator, CocoPredictor
from lambdanets.inference.evaluator import Evaluation, format_score
from lambdanets.inference.model_card import SegmenterCard
from lambdanets.inference.options import MaskOptions
from lambdanets.inference.predictor import numbered_name
from lambdanets.inference.segmentation_scores import SCORES, SegmentationScores, count_image, summarize
from lambdanets.inference.tiles import blend_tiles, is_tiled
from lambdanets.models import create_model
from lambdanets.records import TileSize, check
from lambdanets.text_tables import csv_table, text_table

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
class SegmentationEvaluation(Evaluation):
    """Scores of the readable images of an annotated dataset.

    readable: indices of the readable images. unreadable: one message per unreadable image.
    """

    scores: SegmentationScores
    readable: list[int]
    unreadable: list[str]

    def metrics(self) -> dict[str, float | None]:
        return self.scores.means()

    def to_dict(self) -> dict[str, Any]:
        return {**self.scores.to_dict(), "images": len(self.readable)}

    def summary(self) -> str:
        means = self.scores.means()
        return f"Dice {format_score(means['dice'])}  IoU {format_score(means['iou'])}"

    def lines(self) -> list[str]:
        scores = self.scores.to_dict()
        rows = [["class", *SCORES]]
        for row in (*scores["classes"], scores | {"name": "mean without background"}):
            rows.append([row["name"], *(format_score(row[score]) for score in SCORES)])
        return text_table(rows).splitlines()

    def counts(self) -> str:
        return f"{len(self.readable)} images"


class SegmentationEvaluator(CocoEvaluator):
    """Measures the `ImageCounts` of each image. Only images of equal size share a forward pass."""

    predictor: "Segmenter"
    load = staticmethod(load_with_semantic_mask)

    # images differ in size, and --compile would compile the model again for many sizes
    @torch.compiler.set_stance("force_eager")
    def measure(self, batch: Batch) -> list[Any]:
        segmentations, count = self.predictor.segment(batch.images), len(self.predictor.classes)
        return [
            count_image(index, found.labels.numpy(), target[SEMANTIC_MASK].cpu().numpy(), count)
            for index, found, target in zip(batch.indices.tolist(), segmentations, batch.targets, strict=True)
        ]

    def score(self, measures: list[Any], unreadable: list[str]) -> SegmentationEvaluation:
        readable = sorted(counts.image_index for counts in measures)
        scores = summarize(measures, self.predictor.classes)
        return SegmentationEvaluation(scores, readable, unreadable)

    @torch.compiler.set_stance("force_eager")
    def draw(self, evaluation: SegmentationEvaluation, folder: Path) -> None:
        """Draw predictions.png."""
        from lambdanets.inference.figures import draw_segmentations

        draw_segmentations(self.predictor, self.images, evaluation.readable, folder)


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

    def infer(
        self, images: Sequence[Image.Image], *, tile_size: int | None = None, batch_size: int = 1
    ) -> list[Segmentation]:
        """Segment images at their own resolution. Only images of equal size share a forward pass.

        The probabilities of tiles are averaged in overlaps (see `blend_tiles`).
        """
        return self.segment([image_to_tensor(image) for image in images], tile_size=tile_size, batch_size=batch_size)

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

    def write(
        self, prediction: Segmentation, image: Image.Image, path: Path, number: int, out: Path, options: MaskOptions
    ) -> dict[str, Any]:
        """Write the figure and the semantic mask of an image; the row has the number of pixels of each class."""
        from lambdanets.inference.drawing import overlay_classes

        labels = prediction.labels.numpy()
        outputs = {out / "classes": Image.fromarray(labels)}
        if options.figures:
            outputs[out] = overlay_classes(image, labels)
        for folder, output in outputs.items():
            folder.mkdir(exist_ok=True)
            with atomic_open(folder / f"{numbered_name(number, path)}.png") as file:
                output.save(file, "PNG")
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
