"""Evaluation of detectors on annotated datasets."""

from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lambdanets.data.batches import Batches, BatchSlice
from lambdanets.data.coco.images import AnnotatedImages
from lambdanets.data.coco.loader import AnnotatedBatch, evaluation_batches
from lambdanets.inference.coco_results import Result, coco_results, write_results
from lambdanets.inference.detector import Detector
from lambdanets.inference.evaluator import Evaluation, Evaluator, format_score
from lambdanets.inference.objects import crop_objects

if TYPE_CHECKING:
    from lambdanets.inference.coco_scores import Scores

# Columns of metrics.csv: COCO's iouType and metric.
METRICS = {f"{kind}_{name}": (kind, name) for kind in ("bbox", "segm") for name in ("AP", "AP50")}


@dataclass(frozen=True, eq=False)
class DetectionEvaluation(Evaluation):
    """Detections in the readable images of an annotated dataset, as COCO results, and their scores.

    readable: indices of the readable images. unreadable: one message per unreadable image.
    """

    results: list[Result]
    scores: "Scores"
    readable: list[int]
    unreadable: list[str]

    def metrics(self) -> dict[str, float | None]:
        summary = self.scores.summary()
        return {name: summary[kind][metric] for name, (kind, metric) in METRICS.items()}

    def to_dict(self) -> dict[str, Any]:
        return {**self.scores.to_dict(), "images": len(self.readable)}

    def summary(self) -> str:
        box, mask = (format_score(self.metrics()[f"{kind}_AP"]) for kind in ("bbox", "segm"))
        return f"box AP {box}  mask AP {mask}"

    def lines(self) -> list[str]:
        labels, summary = {"bbox": "boxes", "segm": "masks"}, self.scores.summary()
        return [
            "  ".join([label, *(f"{name} {format_score(value)}" for name, value in summary[kind].items())])
            for kind, label in labels.items()
        ]

    def counts(self) -> str:
        return f"{len(self.readable)} images, {len(self.results)} detections"

    def __repr__(self) -> str:
        precision = {iou_type: summary["AP"] for iou_type, summary in self.scores.summary().items()}
        fields = [f"{iou_type} AP {format_score(ap)}" for iou_type, ap in precision.items()]
        return f"DetectionEvaluation({', '.join([f'{len(self.readable)} images', *fields])})"


class DetectionEvaluator(Evaluator):
    """Measures (index, COCO results) of each image. All masks of a batch are in memory."""

    predictor: Detector
    images: AnnotatedImages

    def batches(
        self, batch_size: int, workers: int = 0, batch_slice: BatchSlice | None = None
    ) -> Batches[AnnotatedBatch]:
        return evaluation_batches(self.images, batch_size, workers, batch_slice)

    def measure(self, batch: AnnotatedBatch) -> list[Any]:
        detections = self.predictor.detect(batch.images) if batch.images else []
        annotated, category_ids = self.images.annotations.images, self.predictor.card.category_ids
        return [
            (index, coco_results(crop_objects(found), annotated[index].id, category_ids))
            for index, found in zip(batch.indices.tolist(), detections, strict=True)
        ]

    def score(self, measures: list[Any], unreadable: list[str]) -> DetectionEvaluation:
        from lambdanets.inference.coco_scores import (
            evaluate,  # imports faster-coco-eval, which prediction does not need
        )

        measures = sorted(measures, key=itemgetter(0))
        readable = [index for index, _ in measures]
        results = [result for _, found in measures for result in found]
        truth = self.images.annotations.to_coco(readable)
        scores = evaluate(truth, results, max_detections=self.predictor.card.max_detections)
        return DetectionEvaluation(results, scores, readable, unreadable)

    def write(self, evaluation: DetectionEvaluation, folder: Path) -> None:
        """Write scores.json, results.json and figures."""
        write_results(evaluation.results, folder / "results.json")
        super().write(evaluation, folder)

    def draw(self, evaluation: DetectionEvaluation, folder: Path) -> None:
        """Draw predictions.png and precision_recall.png."""
        from lambdanets.inference.figures import draw_detections

        draw_detections(self.predictor, self.images, evaluation, folder)
