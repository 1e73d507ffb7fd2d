"""What a detector finds: in an annotated set, and in image files."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from torch import Tensor

from lambdanets.data.coco.annotations import Category
from lambdanets.data.coco.images import AnnotatedImages, open_annotated
from lambdanets.data.images import UnreadableImage, read_image
from lambdanets.errors import InputError
from lambdanets.progress import track
from lambdanets.training.detection.detector import Detector
from lambdanets.training.detection.feeding import as_tensor, make_batches
from lambdanets.training.detection.module import results_of
from lambdanets.training.detection.results import Result
from lambdanets.training.detection.scores import Scores, evaluate


@dataclass(frozen=True)
class Judgement:
    """What was found in the images of a set that could be read, and its scores; unreadable: a sentence for each other.

    read: numbers in the set.
    """

    results: list[Result]
    scores: Scores
    read: list[int]
    unreadable: list[str]


def judge(detector: Detector, images: AnnotatedImages) -> Judgement:
    """Find objects in a set's images and score them. Raises InputError when no image of it can be read."""
    results: list[Result] = []
    read: list[int] = []
    unreadable: list[str] = []
    with make_batches(detector.recipe, images, training=False) as batches:
        for batch in track(batches, "evaluating", len(batches), "batches"):
            unreadable += batch.unreadable
            # one by one: their masks are as large as they are
            for number, image in zip(batch.indices.tolist(), batch.images, strict=True):
                results += results_of(images, number, detector.find([image])[0], detector.category_ids)
                read.append(number)
    if not read:
        raise InputError(f"none of the {len(images)} images could be read; the first: {unreadable[0]}")
    truth = images.annotations.to_coco(read)
    return Judgement(results, evaluate(truth, results, detections=detector.recipe.detections), read, unreadable)


def open_for_evaluation(detector: Detector, data: Path, images: Path) -> AnnotatedImages:
    """A set annotated with the detector's categories. Raises InputError for other ones."""
    opened = open_annotated(data, images)
    check_categories(opened.annotations.categories, detector.categories, str(data))
    return opened


def check_categories(came: tuple[Category, ...], known: tuple[Category, ...], source: str) -> None:
    """Raise InputError unless the categories are those that are known, ids and names."""
    if came == known:
        return
    other = next((category for category in came if category not in known), None)
    fault = f"{other.name!r} (id {other.id})" if other else f"only {len(came)} of them"
    some = ", ".join(f"{category.name!r} (id {category.id})" for category in known[:5])
    raise InputError(
        f"expected in '{source}' the {len(known)} categories that are known ({some}{', ...' if known[5:] else ''}), "
        f"but came {fault}"
    )


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
        yield path, image, detector.find([as_tensor(image)])[0]
