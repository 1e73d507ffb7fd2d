"""Evaluation of segmenters on annotated datasets."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lambdanets.data.batches import Batches, BatchSlice
from lambdanets.data.coco.images import AnnotatedImages
from lambdanets.data.coco.loader import SEMANTIC_MASK, AnnotatedBatch, evaluation_batches, load_with_semantic_mask
from lambdanets.inference.evaluator import Evaluation, Evaluator, format_score
from lambdanets.inference.segmentation_scores import SCORES, SegmentationScores, count_image, summarize
from lambdanets.inference.segmenter import Segmenter
from lambdanets.text_tables import text_table


@dataclass(frozen=True, eq=False)
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

    def __repr__(self) -> str:
        means = [f"{name} {format_score(value)}" for name, value in self.scores.means().items()]
        return f"SegmentationEvaluation({', '.join([f'{len(self.readable)} images', *means])})"


class SegmentationEvaluator(Evaluator):
    """Measures the `ImageCounts` of each image. Only images of equal size share a forward pass."""

    predictor: Segmenter
    images: AnnotatedImages

    def batches(
        self, batch_size: int, workers: int = 0, batch_slice: BatchSlice | None = None
    ) -> Batches[AnnotatedBatch]:
        load = load_with_semantic_mask
        return evaluation_batches(self.images, batch_size, workers, batch_slice, load)

    # images differ in size, and --compile would compile the model again for many sizes
    @torch.compiler.set_stance("force_eager")
    def measure(self, batch: AnnotatedBatch) -> list[Any]:
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
