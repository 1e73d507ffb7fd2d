"""Tiled inference for large images; tiles overlap, and an object on a seam is kept once.

Each tile is detected alone. An object in the overlap of tiles is found several times, and one that a tile cuts is found
incompletely. So objects are accepted in descending order of score, those that touch an inner side of their tile last,
and an object is dropped if accepted objects of other tiles have more than half of its pixels, or if it has more than
half of the pixels of one of them. Objects up to the size of the overlap are whole in at least one tile.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image

from lambdanets.data.coco.loader import image_to_tensor
from lambdanets.data.coco.segmentations import CroppedMask
from lambdanets.inference.detector import Detector
from lambdanets.inference.objects import Objects, crop_objects
from lambdanets.progress import track

_MAX_OVERLAP = 0.5  # fraction of an object's pixels
_TILED_FROM = 2  # images whose longer side exceeds this many tiles are divided


def is_tiled(image: Image.Image, tile_size: int | None) -> bool:
    """Whether an image is divided into tiles: if its longer side is more than twice the tile's."""
    return tile_size is not None and max(image.size) > _TILED_FROM * tile_size


def detect_tiled(detector: Detector, image: Image.Image, tile_size: int, batch_size: int = 1) -> Objects:
    """Detect objects with tiled inference. Tiles overlap by a quarter of their side.

    tile_size: side in pixels of the image. batch_size: tiles per forward pass.

    Memory: 4 bytes per pixel of the image, the cropped masks of all objects, and what the tiles of a batch need.
    """
    corners = [(top, left) for top in _starts(image.height, tile_size) for left in _starts(image.width, tile_size)]
    batches = [corners[start : start + batch_size] for start in range(0, len(corners), batch_size)]
    found: list[_Found] = []
    for batch in track(batches, "detecting", len(batches), "batches of tiles"):
        tiles = [
            image.crop((left, top, min(left + tile_size, image.width), min(top + tile_size, image.height)))
            for top, left in batch
        ]
        for corner, detections in zip(batch, detector.detect([image_to_tensor(tile) for tile in tiles]), strict=True):
            found += _place(crop_objects(detections), corner, (image.height, image.width))
    return _merge(found, (image.height, image.width))


def _starts(side: int, tile: int) -> list[int]:
    """Return the first pixels of tiles that overlap by at least a quarter and cover a side."""
    if side <= tile:
        return [0]
    count = -(-(side - tile) // (tile - tile // 4)) + 1
    return [(side - tile) * i // (count - 1) for i in range(count)]


@dataclass(frozen=True, slots=True)
class _Found:
    """An object of a tile, in coordinates of the image. cut: whether it touches an inner side of its tile."""

    box: list[float]
    label: int
    score: float
    mask: CroppedMask
    tile: tuple[int, int]
    cut: bool


def _place(objects: Objects, corner: tuple[int, int], size: tuple[int, int]) -> Iterator[_Found]:
    """Move the objects of a tile to their place in the image. Objects without pixels are dropped."""
    (top, left), (height, width) = corner, objects.size
    boxes = objects.boxes + torch.tensor([left, top, left, top])
    for box, label, score, mask in zip(
        boxes.tolist(), objects.labels.tolist(), objects.scores.tolist(), objects.masks, strict=True
    ):
        if not mask.mask.size:
            continue
        bottom, right = mask.top + mask.mask.shape[0], mask.left + mask.mask.shape[1]
        cut = (
            (mask.top == 0 and top > 0)
            or (mask.left == 0 and left > 0)
            or (bottom == height and top + height < size[0])
            or (right == width and left + width < size[1])
        )
        yield _Found(box, label, score, CroppedMask(mask.top + top, mask.left + left, mask.mask), corner, cut)


def _merge(found: list[_Found], size: tuple[int, int]) -> Objects:
    """Drop objects that were found in another tile too. Returns the others in descending order of score."""
    owner = np.full(size, -1, np.int32)
    accepted: list[_Found] = []
    areas: list[int] = []
    for each in sorted(found, key=lambda each: (each.cut, -each.score)):
        top, left, mask = each.mask
        window = owner[top : top + mask.shape[0], left : left + mask.shape[1]]
        area = int(mask.sum())
        others, pixels = np.unique(window[mask], return_counts=True)
        elsewhere = {
            other: count
            for other, count in zip(others.tolist(), pixels.tolist(), strict=True)
            if other >= 0 and accepted[other].tile != each.tile
        }
        if sum(elsewhere.values()) > _MAX_OVERLAP * area:
            continue
        if any(count > _MAX_OVERLAP * areas[other] for other, count in elsewhere.items()):
            continue
        window[mask & (window < 0)] = len(accepted)
        accepted.append(each)
        areas.append(area)
    accepted.sort(key=lambda each: -each.score)
    return Objects(
        torch.tensor([each.box for each in accepted]).reshape(-1, 4),
        torch.tensor([each.label for each in accepted], dtype=torch.int64),
        torch.tensor([each.score for each in accepted]),
        [each.mask for each in accepted],
        size,
    )
