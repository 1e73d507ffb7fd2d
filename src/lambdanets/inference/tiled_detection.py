"""Detection in large images, with overlapping tiles whose duplicate objects are suppressed.

Objects are detected in each tile separately. An object in the overlap of tiles is detected several times, and an object
that is cut by the side of a tile is detected incompletely. Duplicates are removed as in greedy non-maximum suppression:
objects are accepted in descending order of score, those that are cut last. An object is dropped if accepted objects of
its class in other tiles cover more than half of it, or if it covers more than half of one of them. Objects up to the
size of the overlap are complete in at least one tile.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image

from lambdanets.data.coco.loader import image_to_tensor
from lambdanets.data.coco.segmentations import CroppedMask
from lambdanets.inference.detections import Detections
from lambdanets.inference.tiles import tile_batches

if TYPE_CHECKING:
    from lambdanets.inference.detector import Detector

_MAX_OVERLAP = 0.5  # fraction of an object's pixels


def detect_tiled(detector: "Detector", image: Image.Image, tile_size: int, batch_size: int = 1) -> Detections:
    """Detect objects with tiled inference. Tiles overlap by a quarter of their side.

    tile_size: side of the tiles in pixels. batch_size: tiles per forward pass.

    Memory: 4 bytes per pixel of the image, the cropped masks of all objects, and the memory for a batch of tiles.
    """
    size = (image.height, image.width)
    found: list[Detections] = []
    tiles: list[int] = []
    is_cut: list[bool] = []
    for batch in tile_batches(size, tile_size, batch_size, "detecting"):
        images = [image.crop((columns.start, rows.start, columns.stop, rows.stop)) for rows, columns in batch]
        detected = detector.detect([image_to_tensor(tile) for tile in images])
        for (rows, columns), objects in zip(batch, detected, strict=True):
            objects = objects.select([index for index, crop in enumerate(objects.crops) if crop.mask.size])
            tiles += [len(found)] * len(objects)
            is_cut += [_is_cut(crop, rows, columns, size) for crop in objects.crops]
            boxes = objects.boxes + torch.tensor([columns.start, rows.start, columns.start, rows.start])
            crops = [CroppedMask(top + rows.start, left + columns.start, mask) for top, left, mask in objects.crops]
            found.append(replace(objects, boxes=boxes, crops=crops))
    boxes, labels, scores = (
        torch.cat([getattr(each, name) for each in found]) for name in ("boxes", "labels", "scores")
    )
    crops = [crop for each in found for crop in each.crops]
    return drop_duplicates(Detections(boxes, labels, scores, crops, size, detector.classes), tiles, is_cut)


def _is_cut(crop: CroppedMask, rows: slice, columns: slice, size: tuple[int, int]) -> bool:
    """Whether a side of a tile within the image cuts an object."""
    axes = zip((crop.top, crop.left), crop.mask.shape, (rows, columns), size, strict=True)
    return any(
        (start == 0 and tile.start > 0) or (tile.start + start + length == tile.stop and tile.stop < side)
        for start, length, tile, side in axes
    )


def drop_duplicates(objects: Detections, tiles: Sequence[int], is_cut: Sequence[bool]) -> Detections:
    """Drop objects that were detected in another tile too. Returns the others in descending order of score.

    tiles: of each object. is_cut: whether a side of the tile cuts it.
    """
    labels, scores = objects.labels.tolist(), objects.scores.tolist()
    order = sorted(range(len(objects)), key=lambda index: (is_cut[index], -scores[index]))
    accepted: list[int] = []
    for label in set(labels):
        owner = np.full(objects.size, -1, np.int32)  # the accepted object that has the pixel
        areas: dict[int, int] = {}
        for index in order:
            if labels[index] != label:
                continue
            top, left, mask = objects.crops[index]
            window = owner[top : top + mask.shape[0], left : left + mask.shape[1]]
            area = int(mask.sum())
            owners, counts = np.unique(window[mask], return_counts=True)
            pairs = zip(owners.tolist(), counts.tolist(), strict=True)
            overlaps = {other: count for other, count in pairs if other >= 0 and tiles[other] != tiles[index]}
            is_covered = sum(overlaps.values()) > _MAX_OVERLAP * area
            if not is_covered and all(count <= _MAX_OVERLAP * areas[other] for other, count in overlaps.items()):
                window[mask & (window < 0)] = index
                areas[index] = area
        accepted += areas
    return objects.select(sorted(accepted, key=lambda index: -scores[index]))
