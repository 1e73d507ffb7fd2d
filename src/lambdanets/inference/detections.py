"""Detected objects with masks that are cropped to their boxes, so that large images need little memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from lambdanets.data.coco.segmentations import CroppedMask

MASK_THRESHOLD = 0.5  # pixels with a higher probability are in the mask


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
        boxes, scores = (outputs[name].float().cpu() for name in ("boxes", "scores"))
        crops = [_crop((mask[0] > MASK_THRESHOLD).cpu().numpy()) for mask in masks]
        return cls(boxes, outputs["labels"].cpu(), scores, crops, (masks.shape[-2], masks.shape[-1]), classes)

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

    def __repr__(self) -> str:
        objects = zip(self.class_names, self.scores.tolist(), strict=True)
        shown = [f"{name} {score:.3f}" for name, score in islice(objects, 3)]
        return f"Detections({', '.join([f'{len(self)} objects', *shown])}{', ...' if len(self) > 3 else ''})"


def _crop(mask: np.ndarray) -> CroppedMask:
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    if not len(rows):
        return CroppedMask(0, 0, mask[:0, :0])
    window = np.s_[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    return CroppedMask(int(rows[0]), int(columns[0]), mask[window].copy())  # a view would keep the whole mask
