"""Overlapping tiles of large images, whose inference takes the memory of one tile and not of the image."""

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lambdanets.progress import track

_MIN_TILES = 2  # images are divided if their longer side exceeds this many tiles


def is_tiled(size: Sequence[int], tile_size: int | None) -> bool:
    """Whether an image is divided into tiles: if its longer side is more than twice the tile's."""
    return tile_size is not None and max(size) > _MIN_TILES * tile_size


def tile_corners(size: Sequence[int], tile_size: int) -> list[tuple[int, int]]:
    """Return top and left of the tiles of an image (height, width). Tiles overlap by at least a quarter of their side.

    All tiles have the same size: tile_size, or the image's side if that is shorter.
    """
    top, left = (_starts(side, tile_size) for side in size)
    return list(itertools.product(top, left))


def blend_tiles(image: Tensor, tile_size: int, predict: Callable[[Tensor], Tensor], batch_size: int = 1) -> Tensor:
    """Predict maps (C, H, W) of an image (3, H, W) from its tiles. In overlaps, predictions are averaged.

    The weight of a prediction in a tile of side t is the product of min(i + 1, t - i, o + 1) over both axes, where i is
    the position in the tile and o = max(1, t // 4): it falls linearly where tiles overlap, so there are no seams.

    predict: maps tiles (B, 3, t, t) to (B, C, t, t) float32 on the CPU. batch_size: tiles per forward pass.

    Memory: the result, one map of weights, and that of `predict` for a batch.
    """
    height, width = image.shape[-2:]
    tile_height, tile_width = (min(side, tile_size) for side in (height, width))
    weights = _ramp(tile_height)[:, None] * _ramp(tile_width)
    corners = tile_corners((height, width), tile_size)
    batches = [corners[start : start + batch_size] for start in range(0, len(corners), batch_size)]
    total, result = torch.zeros(height, width), torch.empty(0)
    for batch in track(batches, "predicting", len(batches), "batches of tiles"):
        windows = [(slice(top, top + tile_height), slice(left, left + tile_width)) for top, left in batch]
        predictions = predict(torch.stack([image[:, rows, columns] for rows, columns in windows]))
        if not result.numel():
            result = predictions.new_zeros(predictions.shape[1], height, width)
        for (rows, columns), prediction in zip(windows, predictions, strict=True):
            result[:, rows, columns] += weights * prediction
            total[rows, columns] += weights
    return result.div_(total)


def _starts(side: int, tile: int) -> list[int]:
    """Return the first pixels of tiles that overlap by at least a quarter and cover a side."""
    if side <= tile:
        return [0]
    count = -(-(side - tile) // (tile - tile // 4)) + 1
    return [(side - tile) * i // (count - 1) for i in range(count)]


def _ramp(tile: int) -> Tensor:
    """Weights along a side of a tile, which increase from 1 at its ends and are constant from a quarter of the side."""
    distance = torch.minimum(torch.arange(tile), torch.arange(tile).flip(0))
    return 1 + distance.clamp(max=max(1, tile // 4)).float()
