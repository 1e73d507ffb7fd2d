"""What a detector finds: in an annotated set, and in image files."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from torch import Tensor

from lambdanets.data.coco.images import AnnotatedImages
from lambdanets.data.coco.loader import as_tensor, evaluation_batches
from lambdanets.data.images import UnreadableImage, read_image
from lambdanets.errors import InputError
from lambdanets.inference.coco_results import Result, coco_results
from lambdanets.inference.coco_scores import Scores, evaluate
from lambdanets.inference.detector import Detector
from lambdanets.progress import track


@dataclass(frozen=True)
class Detections:
    """What was found in the readable images of a set, as COCO's results, and its scores.

    read: numbers of those images in the set. unreadable: one sentence for each other.
    """

    results: list[Result]
    scores: Scores
    read: list[int]
    unreadable: list[str]


def detect_in_set(detector: Detector, images: AnnotatedImages, batch_size: int = 1, workers: int = 0) -> Detections:
    """Find objects in a set's images and score them. Raises InputError when no image of it can be read.

    batch_size: images loaded at a time; they go through the model one by one, as their masks are as large as they are.
    workers: processes that decode images.
    """
    results: list[Result] = []
    read: list[int] = []
    unreadable: list[str] = []
    with evaluation_batches(images, batch_size, workers) as batches:
        for batch in track(batches, "evaluating", len(batches), "batches"):
            unreadable += batch.unreadable
            for number, image in zip(batch.indices.tolist(), batch.images, strict=True):
                image_id = images.annotations.images[number].id
                results += coco_results(detector.predict([image])[0], image_id, detector.card.category_ids)
                read.append(number)
    if not read:
        raise InputError(f"none of the {len(images)} images could be read; the first: {unreadable[0]}")
    scores = evaluate(images.annotations.to_coco(read), results, detections=detector.card.detections)
    return Detections(results, scores, read, unreadable)


def find_in_files(
    detector: Detector, paths: Iterable[Path], unreadable: list[str]
) -> Iterator[tuple[Path, Image.Image, dict[str, Tensor]]]:
    """Each image file that can be read, decoded, and what is found in it; others are added to `unreadable`."""
    for path in paths:
        try:
            image = read_image(path)
        except UnreadableImage as error:
            unreadable.append(str(error))
            continue
        yield path, image, detector.predict([as_tensor(image)])[0]
