"""Detection in large images, with overlapping tiles whose duplicate objects are suppressed.

Objects are detected in each tile separately. An object in the overlap of tiles is detected several times, and an object
that is cut by the side of a tile is detected incompletely. Duplicates are removed as in greedy non-maximum suppression:
objects are accepted in descending order of score, those that are cut last. An object is dropped if accepted objects of
its class in other tiles cover more than half of it, or if it covers more than half of one of them. Objects up to the
size of the overlap are complete in at least one tile.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image

from lambdanets.data.coco.loader import image_to_tensor
from lambdanets.data.coco.segmentations import CroppedMask
from lambdanets.inference.objects import Objects, crop_objects
from lambdanets.inference.tiles import tile_batches

if TYPE_CHECKING:
    from lambdanets.inference.detector import Detector

_MAX_OVERLAP = 0.5  # fraction of an object's pixels


def detect_tiled(detector: "Detector", image: Image.Image, tile_size: int, batch_size: int = 1) -> Objects:
    """Detect objects with tiled inference. Tiles overlap by a quarter of their side.

    tile_size: side of the tiles in pixels. batch_size: tiles per forward pass.

    Memory: 4 bytes per pixel of the image, the cropped masks of all objects, and the memory for a batch of tiles.
    """
    size = (image.height, image.width)
    candidates: list[_TileObject] = []
    for batch in tile_batches(size, tile_size, batch_size, "detecting"):
        tiles = [image.crop((columns.start, rows.start, columns.stop, rows.stop)) for rows, columns in batch]
        detected = detector.detect([image_to_tensor(tile) for tile in tiles])
        for (rows, columns), detections in zip(batch, detected, strict=True):
            candidates += _to_image_coordinates(crop_objects(detections), (rows.start, columns.start), size)
    return _merge(candidates, size)


@dataclass(frozen=True, slots=True)
class _TileObject:
    """An object of a tile, in coordinates of the image. is_cut: whether a side of the tile within the image cuts it."""

    box: list[float]
    label: int
    score: float
    mask: CroppedMask
    tile: tuple[int, int]
    is_cut: bool


def _to_image_coordinates(objects: Objects, corner: tuple[int, int], size: tuple[int, int]) -> Iterator[_TileObject]:
    """Translate the objects of a tile to coordinates of the image. Objects without pixels are dropped."""
    (top, left), (height, width) = corner, objects.size
    boxes = objects.boxes + torch.tensor([left, top, left, top])
    for box, label, score, mask in zip(
        boxes.tolist(), objects.labels.tolist(), objects.scores.tolist(), objects.masks, strict=True
    ):
        if not mask.mask.size:
            continue
        bottom, right = mask.top + mask.mask.shape[0], mask.left + mask.mask.shape[1]
        is_cut = (
            (mask.top == 0 and top > 0)
            or (mask.left == 0 and left > 0)
            or (bottom == height and top + height < size[0])
            or (right == width and left + width < size[1])
        )
        yield _TileObject(box, label, score, CroppedMask(mask.top + top, mask.left + left, mask.mask), corner, is_cut)


def _merge(candidates: list[_TileObject], size: tuple[int, int]) -> Objects:
    """Drop objects that were detected in another tile too. Returns the others in descending order of score."""
    labels = {candidate.label for candidate in candidates}
    accepted = [obj for label in labels for obj in _suppress([c for c in candidates if c.label == label], size)]
    accepted.sort(key=lambda obj: -obj.score)
    return Objects(
        torch.tensor([obj.box for obj in accepted]).reshape(-1, 4),
        torch.tensor([obj.label for obj in accepted], dtype=torch.int64),
        torch.tensor([obj.score for obj in accepted]),
        [obj.mask for obj in accepted],
        size,
    )


def _suppress(candidates: list[_TileObject], size: tuple[int, int]) -> list[_TileObject]:
    """Return the objects of one class without those that were detected in another tile too."""
    owner = np.full(size, -1, np.int32)  # index in `accepted` of the object that has the pixel
    accepted: list[_TileObject] = []
    areas: list[int] = []
    for candidate in sorted(candidates, key=lambda candidate: (candidate.is_cut, -candidate.score)):
        top, left, mask = candidate.mask
        window = owner[top : top + mask.shape[0], left : left + mask.shape[1]]
        area = int(mask.sum())
        owners, counts = np.unique(window[mask], return_counts=True)
        overlaps = {
            index: count
            for index, count in zip(owners.tolist(), counts.tolist(), strict=True)
            if index >= 0 and accepted[index].tile != candidate.tile
        }
        if sum(overlaps.values()) > _MAX_OVERLAP * area:
            continue
        if any(count > _MAX_OVERLAP * areas[index] for index, count in overlaps.items()):
            continue
        window[mask & (window < 0)] = len(accepted)
        accepted.append(candidate)
        areas.append(area)
    return accepted
