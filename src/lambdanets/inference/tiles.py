"""Overlapping tiles of large images, whose inference takes the memory of one tile and not of the image.

Probabilities of pixels are averaged in overlaps. Objects are detected in each tile separately: one in the overlap of
tiles is detected several times, and one that is cut by the side of a tile incompletely. Duplicates are removed as in
greedy non-maximum suppression: objects are accepted in descending order of score, those that are cut last. An object is
dropped if accepted objects of its class in other tiles cover more than half of it, or if it covers more than half of
one of them. Objects up to the size of the overlap are complete in at least one tile.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor
from torchvision.transforms.v2 import functional as transforms

from lambdanets.data.coco.images import image_to_tensor
from lambdanets.data.coco.segmentations import CroppedMask
from lambdanets.inference.detections import Detections
from lambdanets.progress import track

_MAX_OVERLAP = 0.5  # fraction of an object's pixels that others may cover


def is_tiled(size: Sequence[int], tile_size: int) -> bool:
    """Whether an image is divided into tiles: if its longer side is more than twice the tile's, which is not 0."""
    return 0 < 2 * tile_size < max(size)


def predict_tiles(
    image: Image | Tensor, tile_size: int, batch_size: int, predict: Callable[[list[Tensor]], list[Any]]
) -> Iterator[tuple[slice, slice, Any]]:
    """Yield rows, columns and prediction of each tile of an image, and show progress.

    All tiles have the same size: tile_size, or the image's side if that is shorter. They overlap by at least a quarter.

    batch_size: tiles per call of `predict`, which takes them as `image_to_tensor` returns them.
    """
    sides = transforms.get_size(image)
    height, width = (min(side, tile_size) for side in sides)
    tiles = list(itertools.product(*(_starts(side, tile_size) for side in sides)))
    batches = [tiles[start : start + batch_size] for start in range(0, len(tiles), batch_size)]
    for batch in track(batches, "predicting", len(batches), "batches of tiles"):
        predictions = predict([image_to_tensor(transforms.crop(image, *tile, height, width)) for tile in batch])
        for (top, left), prediction in zip(batch, predictions, strict=True):
            yield slice(top, top + height), slice(left, left + width), prediction


def blend_tiles(tiles: Iterable[tuple[slice, slice, Tensor]], shape: tuple[int, int, int]) -> Tensor:
    """Return maps, float32 (C, H, W), of an image from those of its tiles, (C, h, w), by averaging them in overlaps.

    The weight of a prediction in a tile of side t is the product of min(i + 1, t - i, o + 1) over both axes, where i is
    the position in the tile and o = t // 4: it falls linearly where tiles overlap, so there are no seams.

    tiles: rows, columns and maps. Memory: the result, one map of weights, and that for a batch of tiles.
    """
    result, total = torch.zeros(shape), torch.zeros(shape[1:])
    for rows, columns, maps in tiles:
        sides = (torch.arange(side) for side in maps.shape[1:])
        weights = torch.outer(*(1 + torch.minimum(i, i.flip(0)).clamp(max=len(i) // 4).float() for i in sides))
        result[:, rows, columns] += weights * maps
        total[rows, columns] += weights
    return result.div_(total)


def _starts(side: int, tile: int) -> list[int]:
    """Return the first pixels of tiles that overlap by at least a quarter and cover a side."""
    if side <= tile:
        return [0]
    count = -(-(side - tile) // (tile - tile // 4)) + 1
    return [(side - tile) * i // (count - 1) for i in range(count)]


def is_cut(crop: CroppedMask, rows: slice, columns: slice, size: tuple[int, int]) -> bool:
    """Whether a side of a tile within the image cuts an object."""
    axes = zip((crop.top, crop.left), crop.mask.shape, (rows, columns), size, strict=True)
    return any(
        (start == 0 and tile.start > 0) or (tile.start + start + length == tile.stop and tile.stop < side)
        for start, length, tile, side in axes
    )


def drop_duplicates(objects: Detections, tiles: Sequence[int], are_cut: Sequence[bool]) -> Detections:
    """Drop objects that were detected in another tile too, or have no pixels. Returns the others, the best first.

    tiles, are_cut: of each object, its tile and whether a side of the tile cuts it.
    """
    labels, scores = objects.labels.tolist(), objects.scores.tolist()
    order = sorted(range(len(objects)), key=lambda index: (are_cut[index], -scores[index]))
    accepted: list[int] = []
    for label in set(labels):
        owner = np.full(objects.size, -1, np.int32)  # the accepted object that has the pixel
        areas: dict[int, int] = {}
        for index in order:
            top, left, mask = objects.crops[index]
            if labels[index] != label or not mask.size:
                continue
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
