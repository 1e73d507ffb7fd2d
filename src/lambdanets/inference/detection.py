"""Detection in annotated datasets and image files."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from lambdanets.data.batches import Batches
from lambdanets.data.coco.images import AnnotatedImages
from lambdanets.data.coco.loader import AnnotatedBatch, evaluation_batches, image_to_tensor
from lambdanets.data.order import BatchSlice
from lambdanets.inference.coco_results import Result, coco_results
from lambdanets.inference.detector import Detector
from lambdanets.inference.evaluator import Evaluation, Evaluator, format_score
from lambdanets.inference.inputs import readable_batches
from lambdanets.inference.objects import Objects, crop_objects
from lambdanets.inference.tiled_detection import detect_tiled
from lambdanets.inference.tiles import is_tiled

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

    def summary(self) -> str:
        box, mask = (format_score(self.metrics()[f"{kind}_AP"]) for kind in ("bbox", "segm"))
        return f"box AP {box}  mask AP {mask}"

    def lines(self) -> list[str]:
        labels, summary = {"bbox": "boxes", "segm": "masks"}, self.scores.summary()
        return [
            "  ".join([label, *(f"{name} {format_score(value)}" for name, value in summary[kind].items())])
            for kind, label in labels.items()
        ]

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


def detect_files(
    detector: Detector,
    paths: Sequence[Path],
    unreadable: list[str],
    batch_size: int = 1,
    *,
    channel: int | None = None,
    stretch: bool | None = None,
    tile_size: int | None = None,
) -> Iterator[tuple[Path, Image.Image, Objects]]:
    """Yield path, image and objects of each readable file; messages about the others are added to `unreadable`.

    channel, stretch: as in `read_image`; stretch is by default that of the model card.
    tile_size: side of the tiles of large images (see `detect_tiled`); None for no tiles.
    """
    stretch = detector.card.stretch if stretch is None else stretch
    for batch in readable_batches(paths, unreadable, batch_size, channel=channel, stretch=stretch):
        untiled = [image_to_tensor(image) for _, image in batch if not is_tiled(image.size, tile_size)]
        detections = iter(detector.detect(untiled) if untiled else ())
        for path, image in batch:
            if tile_size is not None and is_tiled(image.size, tile_size):
                yield path, image, detect_tiled(detector, image, tile_size, batch_size)
            else:
                yield path, image, crop_objects(next(detections))
