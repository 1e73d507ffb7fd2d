"""Detection in annotated datasets and image files."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from lambdanets.data.coco.images import AnnotatedImages
from lambdanets.data.coco.loader import evaluation_batches, image_to_tensor
from lambdanets.errors import InputError
from lambdanets.inference.coco_results import Result, coco_results
from lambdanets.inference.detector import Detector
from lambdanets.inference.inputs import readable_batches
from lambdanets.inference.objects import Objects, crop_objects
from lambdanets.inference.tiled_detection import detect_tiled
from lambdanets.inference.tiles import is_tiled
from lambdanets.progress import track

if TYPE_CHECKING:
    from lambdanets.inference.coco_scores import Scores


@dataclass(frozen=True, eq=False)
class DetectionEvaluation:
    """Detections in the readable images of an annotated dataset, as COCO results, and their scores.

    readable: indices of the readable images. unreadable: one message per unreadable image.
    """

    results: list[Result]
    scores: "Scores"
    readable: list[int]
    unreadable: list[str]

    def __repr__(self) -> str:
        precision = {iou_type: summary["AP"] for iou_type, summary in self.scores.summary().items()}
        fields = [f"{iou_type} AP {'-' if ap is None else f'{ap:.4f}'}" for iou_type, ap in precision.items()]
        return f"DetectionEvaluation({', '.join([f'{len(self.readable)} images', *fields])})"


def evaluate_detector(
    detector: Detector, images: AnnotatedImages, batch_size: int = 1, workers: int = 0
) -> DetectionEvaluation:
    """Detect objects in a dataset and score them. Raises InputError if all images are unreadable.

    batch_size: images per forward pass. All masks of a batch are in memory.
    workers: number of data loading processes.
    """
    from lambdanets.inference.coco_scores import evaluate  # imports faster-coco-eval, which prediction does not need

    results: list[Result] = []
    readable: list[int] = []
    unreadable: list[str] = []
    with evaluation_batches(images, batch_size, workers) as batches:
        for batch in track(batches, "evaluating", len(batches), "batches"):
            unreadable += batch.unreadable
            detections = detector.detect(batch.images) if batch.images else []
            for index, image_detections in zip(batch.indices.tolist(), detections, strict=True):
                image_id = images.annotations.images[index].id
                results += coco_results(crop_objects(image_detections), image_id, detector.card.category_ids)
                readable.append(index)
    if not readable:
        raise InputError(f"none of the {len(images)} images could be read; the first: {unreadable[0]}")
    scores = evaluate(images.annotations.to_coco(readable), results, max_detections=detector.card.max_detections)
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
