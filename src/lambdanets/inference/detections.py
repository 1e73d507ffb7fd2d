"""Detected objects, their label images, and their measurements, as microscopy software reads them.

Masks are cropped to their boxes, so that large images need little memory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any, Self

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from lambdanets.data.coco.segmentations import CroppedMask
from lambdanets.terminal import plural

MASK_THRESHOLD = 0.5  # pixels with a higher probability are in the mask
MIN_SCORE = 0.5  # objects with lower scores are neither drawn nor counted
# Columns of the table, by property of scikit-image's regionprops.
_PROPERTIES = {
    "label": "object",
    "area": "area",
    "centroid-0": "row",
    "centroid-1": "column",
    "bbox-0": "top",
    "bbox-1": "left",
    "bbox-2": "bottom",
    "bbox-3": "right",
    "equivalent_diameter_area": "diameter",
    "eccentricity": "eccentricity",
    "intensity_mean": "mean_intensity",
    "intensity_min": "min_intensity",
    "intensity_max": "max_intensity",
}
_DIGITS = 4  # after the decimal point
COLUMNS = ("image", "object", "class", "score", *list(_PROPERTIES.values())[1:])


@dataclass(frozen=True, eq=False, repr=False)
class Detections:
    """The n detections in one image, in descending order of score, on the CPU.

    boxes: (n, 4) float32, x1, y1, x2, y2 in pixels of the image. scores: (n,) float32.
    labels: (n,) int64, from 1: the class name is classes[label - 1].
    crops: the masks, each cropped to its pixels; that of an object without pixels has the shape (0, 0).
    size: (height, width) of the image. classes: names of all classes.
    """

    boxes: Tensor
    labels: Tensor
    scores: Tensor
    crops: Sequence[CroppedMask]
    size: tuple[int, int]
    classes: tuple[str, ...]

    @classmethod
    def from_outputs(cls, outputs: Mapping[str, Any], classes: tuple[str, ...]) -> Self:
        """Convert the output of Mask R-CNN for one image, with masks (n, 1, H, W) of probabilities."""
        masks = outputs["masks"]
        # clones, since tensors of inference mode cannot be changed in place
        boxes, scores = (outputs[name].float().cpu().clone() for name in ("boxes", "scores"))
        crops = [_crop((mask[0] > MASK_THRESHOLD).cpu().numpy()) for mask in masks]
        return cls(boxes, outputs["labels"].cpu().clone(), scores, crops, (masks.shape[-2], masks.shape[-1]), classes)

    @cached_property
    def masks(self) -> Tensor:
        """(n, H, W) bool, in the size of the image."""
        masks = torch.zeros(len(self), *self.size, dtype=torch.bool)
        for whole, (top, left, mask) in zip(masks, self.crops, strict=True):
            whole[top : top + mask.shape[0], left : left + mask.shape[1]] = torch.from_numpy(mask)
        return masks

    def __len__(self) -> int:
        return len(self.crops)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The class name of each detection."""
        return tuple(self.classes[label - 1] for label in self.labels.tolist())

    def select(self, indices: Sequence[int]) -> Self:
        """Return the detections at these indices."""
        chosen, crops = torch.tensor(indices, dtype=torch.int64), [self.crops[index] for index in indices]
        return replace(
            self, boxes=self.boxes[chosen], labels=self.labels[chosen], scores=self.scores[chosen], crops=crops
        )

    def above(self, score: float) -> Self:
        """Return the detections with at least this score."""
        return self.select((self.scores >= score).nonzero().flatten().tolist())

    def label_image(self, min_score: float = 0.0) -> tuple[np.ndarray, Self]:
        """Return a label image (H, W) and its objects: pixels with the value i show the object i - 1.

        min_score: minimum score of the objects to include; default all.

        0 is background. Where masks overlap, a pixel belongs to the object with the highest score. Objects that are
        completely covered are left out, and labels are consecutive, in descending order of score. The dtype is uint16,
        or int32 for more than 65,535 objects.
        """
        objects = self.above(min_score)
        objects = objects.select(objects.scores.argsort(descending=True, stable=True).tolist())
        image = np.zeros(self.size, np.int32)
        for number in range(len(objects), 0, -1):
            top, left, mask = objects.crops[number - 1]
            image[top : top + mask.shape[0], left : left + mask.shape[1]][mask] = number
        visible = np.bincount(image.ravel())[1:].nonzero()[0]
        labels = np.zeros(len(objects) + 1, np.uint16 if len(visible) < 2**16 else np.int32)
        labels[visible + 1] = np.arange(1, len(visible) + 1)
        return labels[image], objects.select(visible.tolist())

    def __repr__(self) -> str:
        objects = zip(self.class_names, self.scores.tolist(), strict=True)
        shown = [f"{name} {score:.3f}" for name, score in islice(objects, 3)]
        return f"Detections({', '.join([plural(len(self), 'object'), *shown])}{', ...' if len(self) > 3 else ''})"


def _crop(mask: np.ndarray) -> CroppedMask:
    left, top, right, bottom = Image.fromarray(mask).getbbox() or (0, 0, 0, 0)
    return CroppedMask(top, left, mask[top:bottom, left:right].copy())  # a view would keep the whole mask


def measure_objects(image: Image.Image, labels: np.ndarray, objects: Detections) -> list[dict[str, Any]]:
    """Return one row per object of the label image of an image, with all `COLUMNS` except "image".

    scikit-image measures them. Intensities are those of the image as it was read, stretched or not, in gray, from 0 to
    255. Lengths are in pixels: area, centroid (row, column), box (top, left, bottom, right; the last two exclusive),
    diameter of the circle of the same area, eccentricity of the ellipse of the same second moments.
    """
    from skimage.measure import regionprops_table  # slow to import

    measured = dict.fromkeys(name.partition("-")[0] for name in _PROPERTIES)
    table = regionprops_table(labels, np.asarray(image.convert("L")), properties=list(measured))
    columns = {
        "class": objects.class_names,
        "score": [round(score, _DIGITS) for score in objects.scores.tolist()],
        **{column: table[name].round(_DIGITS).tolist() for name, column in _PROPERTIES.items()},
    }
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
