"""Scores of semantic segmentation: Dice, IoU and boundary F1 per class."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from lambdanets.data.coco.images import IGNORED

TOLERANCE = 2.0  # pixels
SCORES = ("dice", "iou", "boundary_f1")


# Of an image: pixels per class, int64 (3, classes), that are predicted, in the target, and in both; the boundary F1 of
# each class, None for a class without a boundary.
ImageCounts = tuple[np.ndarray, tuple[float | None, ...]]


def count_image(predicted: np.ndarray, target: np.ndarray, num_classes: int) -> ImageCounts:
    """Compare a predicted semantic mask with a target, both uint8 (H, W)."""
    predicted = np.where(target == IGNORED, IGNORED, predicted).astype(np.uint8)
    known, common = target != IGNORED, target == predicted
    found = (predicted[known], target[known], target[known & common])
    counts = np.stack([np.bincount(labels, minlength=num_classes) for labels in found])
    boundaries = find_boundaries(predicted), find_boundaries(target)
    scores = (
        boundary_f1(boundaries[0] & (predicted == number), boundaries[1] & (target == number))
        for number in range(num_classes)
    )
    return counts, tuple(scores)


def summarize(counts: Iterable[ImageCounts], classes: Sequence[str]) -> dict[str, Any]:
    """Return the scores of a dataset as they are in scores.json: of each class, and their means without the background.

    With P, T and I the numbers of predicted, target and common pixels of a class, summed over all images:

        Dice = 2 I / (P + T),    IoU = I / (P + T - I)

    boundary_f1 is the mean of `boundary_f1` over the images in which the class has a boundary. Ignored pixels are not
    counted. A score is None for a class that no image has, neither predicted nor in the target; means leave it out.
    The order of the images does not matter.

    classes: names, first that of the background.
    """
    pixels, boundary_f1s = zip(*counts, strict=True)
    numbers = np.sum(pixels, axis=0).T.tolist()
    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "dice": 2 * i / (p + t) if p + t else None,
            "iou": i / (p + t - i) if p + t else None,
            "boundary_f1": _mean(f1s),
        }
        for name, (p, t, i), *f1s in zip(classes, numbers, *boundary_f1s, strict=True)
    ]
    return {score: _mean(row[score] for row in rows[1:]) for score in SCORES} | {"classes": rows}


def find_boundaries(labels: np.ndarray, ignored: int = IGNORED) -> np.ndarray:
    """Return the boundary pixels of a mask or label image, bool (H, W): those with a neighbor of another label.

    Neighbors are above, below, left and right. Ignored pixels (-1 for none) and the edge of the image make no boundary.
    """
    boundary = np.zeros(labels.shape, bool)
    for pixels, values in ((boundary, labels), (boundary.T, labels.T)):
        differ = (values[1:] != values[:-1]) & (values[1:] != ignored) & (values[:-1] != ignored)
        pixels[1:] |= differ
        pixels[:-1] |= differ
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
