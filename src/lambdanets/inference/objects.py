"""Detected objects with masks that are cropped to their boxes, so that large images need little memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lambdanets.data.coco.segmentations import CroppedMask


@dataclass(frozen=True, eq=False)
class Objects:
    """The n objects in an image, in descending order of score, on the CPU.

    boxes: (n, 4) float32, x1, y1, x2, y2 in pixels. labels: (n,) int64, from 1. scores: (n,) float32.
    masks: one per object; that of an object without pixels has the shape (0, 0).
    size: (height, width) of the image.
    """

    boxes: Tensor
    labels: Tensor
    scores: Tensor
    masks: Sequence[CroppedMask]
    size: tuple[int, int]

    def __len__(self) -> int:
        return len(self.masks)

    def select(self, indices: Sequence[int]) -> "Objects":
        """Return the objects at these indices."""
        chosen = torch.tensor(indices, dtype=torch.int64)
        masks = [self.masks[index] for index in indices]
        return Objects(self.boxes[chosen], self.labels[chosen], self.scores[chosen], masks, self.size)

    def above(self, score: float) -> "Objects":
        """Return the objects with at least this score."""
        return self.select((self.scores >= score).nonzero().flatten().tolist())


def crop_objects(detections: Mapping[str, Any]) -> Objects:
    """Convert the output of Mask R-CNN for one image, with masks (n, 1, H, W), thresholded at 0.5, to `Objects`."""
    masks = detections["masks"]
    boxes, scores = (detections[name].float().cpu() for name in ("boxes", "scores"))
    cropped = [_crop((mask[0] > 0.5).cpu().numpy()) for mask in masks]
    return Objects(boxes, detections["labels"].cpu(), scores, cropped, (masks.shape[-2], masks.shape[-1]))


def _crop(mask: np.ndarray) -> CroppedMask:
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    if not len(rows):
        return CroppedMask(0, 0, mask[:0, :0])
    window = np.s_[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    return CroppedMask(int(rows[0]), int(columns[0]), mask[window].copy())  # a view would keep the whole mask
