"""Grids and relative offsets: from an embedding table to the offsets, and the pairs, that exist on a grid.

A table R (r_1..r_D, k, u) has one row per relative offset m - n, its centre at offset 0. It serves every grid:
offsets that the grid does not have are cropped, offsets that the table does not have count as zero.
"""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor


def reach(scope: int, side: int, dilation: int) -> int:
    """How many steps of the dilation a scope reaches to either side, no further than the side of the grid."""
    return min(scope // 2, (side - 1) // dilation)


def crop_to_grid(table: Tensor, grid: Sequence[int], dilation: int) -> Tensor:
    """The part of the table (r_1..r_D, k, u) whose offsets exist on the grid: odd sides of at most 2 S - 1."""
    for axis, side in enumerate(grid):
        scope = table.shape[axis]
        steps = reach(scope, side, dilation)
        table = table.narrow(axis, scope // 2 - steps, 2 * steps + 1)
    return table


def without_future(table: Tensor, dimensions: int) -> Tensor:
    """The table with zeros at the offsets that come after 0 in row-major order; offset 0 itself stays."""
    flat = table.flatten(0, dimensions - 1)
    past = flat.shape[0] // 2 + 1
    return F.pad(flat[:past], (0, 0, 0, 0, 0, flat.shape[0] - past)).reshape(table.shape)


def embeddings_of_pairs(table: Tensor, grid: Sequence[int], dilation: int) -> Tensor:
    """E (S_1..S_D, k, u, S_1..S_D), query position first, from a table (r_1..r_D, k, u) cropped to the grid.

    A strided view of the padded table: unfold's gradient sums the pairs of an offset in a fixed order, where that of
    an indexed gather may not.
    """
    dimensions = len(grid)
    for axis, side in enumerate(grid):
        steps = table.shape[axis] // 2
        if dilation > 1:
            table = _spread(table, axis, dilation)
        missing = side - 1 - steps * dilation
        table = F.pad(table, _padding(table.ndim, axis, missing, missing))
        # Window i of length S starts at offset i - (S - 1): it belongs to query position S - 1 - i.
        table = table.unfold(axis, side, 1)
    return table.flip(tuple(range(dimensions)))


def _spread(table: Tensor, axis: int, dilation: int) -> Tensor:
    """Zeros between the entries along an axis: offsets that are no multiple of the dilation."""
    table = table.unsqueeze(axis + 1)
    table = F.pad(table, _padding(table.ndim, axis + 1, 0, dilation - 1)).flatten(axis, axis + 1)
    return table.narrow(axis, 0, table.shape[axis] - dilation + 1)


def _padding(rank: int, axis: int, before: int, after: int) -> list[int]:
    """F.pad's argument, which counts axes from the last, for one axis."""
    return [0, 0] * (rank - 1 - axis) + [before, after]
