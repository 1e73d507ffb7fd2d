"""Scores of semantic segmentation: Dice, IoU and boundary F1 per class."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lambdanets.data.coco.images import IGNORED
from lambdanets.inference.evaluator import format_score
from lambdanets.terminal import text_table

TOLERANCE = 2.0  # pixels
SCORES = ("dice", "iou", "boundary_f1")


class ImageCounts(NamedTuple):
    """What the scores of a dataset are computed from."""

    image_index: int
    confusion: np.ndarray  # number of pixels per target class (rows) and predicted class (columns)
    boundary_f1: tuple[float | None, ...]  # of each class; None for a class without a boundary


@dataclass(frozen=True)
class SegmentationScores:
    """Scores per class and their means over the classes without the background, which is the first class.

    With P, T and I the numbers of predicted, target and common pixels of a class, summed over all images:

        Dice = 2 I / (P + T),    IoU = I / (P + T - I)

    boundary_f1 is the mean of `boundary_f1` over the images in which the class has a boundary. Ignored pixels are not
    counted. A score is None for a class that no image has, neither predicted nor in the target; means leave it out.
    """

    classes: tuple[str, ...]
    dice: tuple[float | None, ...]
    iou: tuple[float | None, ...]
    boundary_f1: tuple[float | None, ...]

    def means(self) -> dict[str, float | None]:
        """The mean of each score over the classes without the background; None if no class has the score."""
        return {name: _mean(getattr(self, name)[1:]) for name in SCORES}

    def lines(self) -> list[str]:
        """A table of the scores of each class, and of the means."""
        scores = self.to_dict()
        rows = (*scores["classes"], scores | {"name": "mean without background"})
        table = [[row["name"], *(format_score(row[score]) for score in SCORES)] for row in rows]
        return text_table([["class", *SCORES], *table]).splitlines()

    def to_dict(self) -> dict[str, Any]:
        """Means and scores per class, for JSON."""
        rows = zip(self.classes, self.dice, self.iou, self.boundary_f1, strict=True)
        return self.means() | {"classes": [dict(zip(("name", *SCORES), row, strict=True)) for row in rows]}


def count_image(image_index: int, predicted: np.ndarray, target: np.ndarray, num_classes: int) -> ImageCounts:
    """Compare a predicted semantic mask with a target, both uint8 (H, W)."""
    predicted = np.where(target == IGNORED, IGNORED, predicted).astype(np.uint8)
    known = target != IGNORED
    pairs = target[known].astype(np.int64) * num_classes + predicted[known]
    confusion = np.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes)
    boundaries = find_boundaries(predicted), find_boundaries(target)
    scores = (
        boundary_f1(boundaries[0] & (predicted == number), boundaries[1] & (target == number))
        for number in range(num_classes)
    )
    return ImageCounts(image_index, confusion, tuple(scores))


def summarize(counts: Iterable[ImageCounts], classes: Sequence[str]) -> SegmentationScores:
    """Return the scores of a dataset, which do not depend on the order of the images."""
    images = list(counts)
    confusion = np.sum([image.confusion for image in images], axis=0)
    numbers = np.stack([confusion.sum(0), confusion.sum(1), confusion.diagonal()], axis=1).tolist()
    return SegmentationScores(
        tuple(classes),
        tuple(2 * i / (p + t) if p + t else None for p, t, i in numbers),
        tuple(i / (p + t - i) if p + t else None for p, t, i in numbers),
        tuple(_mean(column) for column in zip(*(image.boundary_f1 for image in images), strict=True)),
    )


def find_boundaries(labels: np.ndarray) -> np.ndarray:
    """Return the boundary pixels of a semantic mask, bool (H, W): those with a neighbor of another class.

    Neighbors are above, below, left and right. Ignored pixels and the edge of the image make no boundary.
    """
    boundary = np.zeros(labels.shape, bool)
    for first, second in (((slice(-1),), (slice(1, None),)), ((..., slice(-1)), (..., slice(1, None)))):
        pixels, neighbors = labels[first], labels[second]
        differ = (pixels != neighbors) & (pixels != IGNORED) & (neighbors != IGNORED)
        boundary[first] |= differ
        boundary[second] |= differ
    return boundary


def boundary_f1(predicted: np.ndarray, target: np.ndarray) -> float | None:
    """Return the boundary F1 score of a class in an image (Csurka et al., BMVC 2013), given boundaries, bool (H, W).

        F1 = 2 precision recall / (precision + recall)

    precision: fraction of the predicted boundary pixels at most TOLERANCE pixels from a pixel of the target's boundary,
    in Euclidean distance. recall: the same with prediction and target exchanged. The score is 0 if only one of them has
    a boundary, and None if neither has.
    """
    if not predicted.any() or not target.any():
        return 0.0 if predicted.any() or target.any() else None
    from scipy.ndimage import distance_transform_edt  # predictions do not need it

    precision = float((distance_transform_edt(~target)[predicted] <= TOLERANCE).mean())
    recall = float((distance_transform_edt(~predicted)[target] <= TOLERANCE).mean())
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None
