"""Tiles of query positions with their windows of context positions, and blocks of embeddings for them.

A tile covers a few rows of the first axis of the grid, and some or all positions of every other axis. Windows are
cropped at the ends of the first axis. Along other axes that a tile does not cover completely, windows extend beyond the
grid and are zero-padded.

The embedding of a pair depends only on its offset, so all tiles use the same block E of embeddings. Along one axis,
E[t, w] = R[w - t] for tile position t and window position w, or R[before + w - t] if a tile covers the axis.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from lambdanets.ops.position.algorithm import Problem
from lambdanets.ops.precision import accumulation_dtype


class Tile(NamedTuple):
    """Positions of a tile along an axis, of its window, and of the window in a block of embeddings."""

    rows: slice
    window: slice
    block: slice

    @property
    def num_rows(self) -> int:
        return int(self.rows.stop - self.rows.start)

    @property
    def num_window_rows(self) -> int:
        return int(self.window.stop - self.window.start)


@dataclass(frozen=True)
class Axis:
    """The tiles of one axis of a grid.

    side: of the grid. before, after: number of offsets below and above 0 in the table. tile: positions of a tile.
    """

    side: int
    before: int
    after: int
    tile: int

    @property
    def is_covered(self) -> bool:
        """Whether one tile has all positions; it has the axis as its window."""
        return self.tile >= self.side

    @property
    def window(self) -> int:
        """Positions of a window."""
        return self.side if self.is_covered else self.tile + self.before + self.after

    @property
    def num_tiles(self) -> int:
        return -(-self.side // self.tile)

    @property
    def padding(self) -> tuple[int, int]:
        """Positions before and after the axis that complete the first and the last window."""
        before = 0 if self.is_covered else self.before
        return before, (self.num_tiles - 1) * self.tile + self.window - before - self.side

    @property
    def table_padding(self) -> tuple[int, int]:
        """Offsets before and after those of the table that pairs of a tile and its window have."""
        if self.is_covered:
            return self.side - 1 - self.before, self.side - 1 - self.after
        return self.tile - 1, self.tile - 1

    def tiles(self) -> Iterator[Tile]:
        """Yield tiles whose windows are cropped at the ends of the axis; the last tile may be smaller."""
        if self.is_covered:
            yield Tile(slice(0, self.side), slice(0, self.side), slice(0, self.side))
            return
        for start in range(0, self.side, self.tile):
            stop = min(self.side, start + self.tile)
            first = start - self.before
            window = slice(max(0, first), min(self.side, stop + self.after))
            yield Tile(slice(start, stop), window, slice(window.start - first, window.stop - first))


@dataclass(frozen=True)
class Tiling:
    """The tiles of all axes for a problem with at least two; those of the first axis are processed one at a time."""

    problem: Problem
    tile: tuple[int, ...]

    @cached_property
    def axes(self) -> list[Axis]:
        p = self.problem
        return [Axis(*sizes) for sizes in zip(p.grid, p.before, p.after, self.tile, strict=True)]

    @cached_property
    def window(self) -> tuple[int, ...]:
        """The sides of a window."""
        return tuple(axis.window for axis in self.axes)

    @cached_property
    def num_tiles(self) -> tuple[int, ...]:
        """Number of tiles along axes 2..D."""
        return tuple(axis.num_tiles for axis in self.axes[1:])

    @cached_property
    def positions_per_tile_row(self) -> int:
        """Number of positions in one row of a tile, without the first axis."""
        return math.prod(self.tile[1:])

    @cached_property
    def elements_per_window_row(self) -> int:
        """Number of elements in one row of a window, (w_2..w_D, u)."""
        return math.prod(self.window[1:]) * self.problem.intra_depth

    def logits_bytes(self, batch: int) -> int:
        """Return the size of the logits of one row of tiles."""
        p = self.problem
        num_queries = self.tile[0] * self.positions_per_tile_row * p.heads * math.prod(self.num_tiles) * batch
        window = min(self.window[0], p.grid[0]) * self.elements_per_window_row
        return accumulation_dtype(p.dtype).itemsize * num_queries * window

    def split(self, x: Tensor) -> Tensor:
        """Reshape (b, S_1..S_D, ...) to (b, S_1, J_2, T_2, .., J_D, T_D, ...), zero-padded to multiples of the tile."""
        sides = [count * tile for count, tile in zip(self.num_tiles, self.tile[1:], strict=True)]
        x = _pad(x, [(0, padded - side) for padded, side in zip(sides, self.problem.grid[1:], strict=True)])
        for i, (count, tile) in enumerate(zip(self.num_tiles, self.tile[1:], strict=True)):
            x = x.unflatten(2 + 2 * i, (count, tile))
        return x

    def join(self, x: Tensor) -> Tensor:
        """The inverse of `split`."""
        for i, side in enumerate(self.problem.grid[1:]):
            x = x.flatten(2 + i, 3 + i).narrow(2 + i, 0, side)
        return x

    @cached_property
    def tiles_first(self) -> list[int]:
        """Permutation of the leading axes of the result of `split` to (J_2..J_D, b, S_1, T_2..T_D)."""
        others = len(self.tile) - 1
        return [*range(2, 2 + 2 * others, 2), 0, 1, *range(3, 3 + 2 * others, 2)]


def _pad(x: Tensor, paddings: list[tuple[int, int]]) -> Tensor:
    """Zero-pad x (b, S_1, S_2..S_D, ...) before and after along S_2..S_D."""
    if not any(itertools.chain(*paddings)):
        return x
    trailing = x.ndim - 2 - len(paddings)
    return F.pad(x, [0, 0] * trailing + [size for pair in reversed(paddings) for size in pair])


def pack_queries(queries: Tensor, tiling: Tiling) -> Tensor:
    """Reshape queries (b, h, n, k) to (S_1, (T_2..T_D), (h, J, b), k)."""
    x = tiling.split(queries.transpose(1, 2).unflatten(1, tiling.problem.grid))
    order = tiling.tiles_first
    d = len(tiling.tile)
    x = x.permute(order[d], *order[d + 1 :], x.ndim - 2, *order[:d], x.ndim - 1)
    return x.contiguous().view(x.shape[0], tiling.positions_per_tile_row, -1, x.shape[-1])


def unpack_queries(grad_queries: Tensor, tiling: Tiling) -> Tensor:
    """Apply the inverse of `pack_queries` to the gradient of the packed queries."""
    p, d = tiling.problem, len(tiling.tile)
    x = grad_queries.view(p.grid[0], *tiling.tile[1:], p.heads, *tiling.num_tiles, -1, p.query_depth)
    # (S_1, T_2.., h, J_2.., b, k) to (b, S_1, J_2, T_2, .., h, k)
    interleaved = [dim for i in range(1, d) for dim in (d + i, i)]
    x = x.permute(2 * d, 0, *interleaved, d, 2 * d + 1)
    return tiling.join(x).flatten(1, d).transpose(1, 2)


def pack_values(values: Tensor, tiling: Tiling) -> Tensor:
    """Return the windows of all tiles ((J, b), S_1, (w_2..w_D, u), v), for the full first axis."""
    p = tiling.problem
    x = values.transpose(2, 3).unflatten(1, p.grid)  # (b, S_1..S_D, u, v)
    x = _pad(x, [axis.padding for axis in tiling.axes[1:]])
    for i, (tile, window) in enumerate(zip(tiling.tile[1:], tiling.window[1:], strict=True)):
        x = x.unfold(2 + i, window, tile)  # (b, S_1, J_2..J_D, u, v, w_2..w_D)
    d = len(tiling.tile)
    x = x.permute(*range(2, d + 1), 0, 1, *range(d + 3, x.ndim), d + 1, d + 2)
    return x.reshape(-1, p.grid[0], tiling.elements_per_window_row, p.value_depth)


def unpack_values(grad_values: Tensor, tiling: Tiling) -> Tensor:
    """The adjoint of `pack_values`: adds overlapping windows, in float32 or wider."""
    p, d = tiling.problem, len(tiling.tile)
    x = grad_values.view(*tiling.num_tiles, -1, p.grid[0], *tiling.window[1:], p.intra_depth, p.value_depth)
    for axis in tiling.axes[1:]:
        # Each iteration removes J_i and replaces w_i by S_i. Without J_i, w_i is always axis d of
        # (J_{i+1}, .., J_D, b, S_1, .., S_{i-1}, w_i, .., w_D, u, v).
        shape = list(x.shape[1:])
        shape[d] = axis.side + sum(axis.padding)
        padded = x.new_zeros(shape, dtype=accumulation_dtype(x.dtype))
        for j, window in enumerate(x):
            padded.narrow(d, j * axis.tile, axis.window).add_(window)
        x = padded.narrow(d, axis.padding[0], axis.side)
    return x.flatten(1, d).transpose(2, 3)


def pack_outputs(outputs: Tensor, tiling: Tiling) -> Tensor:
    """Reshape outputs (b, h, n, v) to ((J, b), S_1, (T_2..T_D, h), v)."""
    p = tiling.problem
    x = tiling.split(outputs.transpose(1, 2).unflatten(1, p.grid))
    x = x.permute(*tiling.tiles_first, x.ndim - 2, x.ndim - 1)
    return x.contiguous().view(-1, p.grid[0], tiling.positions_per_tile_row * p.heads, p.value_depth)


def unpack_outputs(outputs: Tensor, tiling: Tiling) -> Tensor:
    """The inverse of `pack_outputs`; the result is contiguous as (b, n, h, v)."""
    p, d = tiling.problem, len(tiling.tile)
    x = outputs.view(*tiling.num_tiles, -1, p.grid[0], *tiling.tile[1:], p.heads, p.value_depth)
    interleaved = [dim for i in range(d - 1) for dim in (i, d + 1 + i)]
    x = tiling.join(x.permute(d - 1, d, *interleaved, x.ndim - 2, x.ndim - 1))
    return x.flatten(1, d).transpose(1, 2)


def pad_table(table: Tensor, axes: Sequence[Axis]) -> Tensor:
    """Zero-pad a table (r_1..r_D, ...) to the offsets of all pairs of a tile and its window."""
    return F.pad(table, [0, 0] * (table.ndim - len(axes)) + [n for axis in reversed(axes) for n in axis.table_padding])


def sum_pairs(grad_pairs: Tensor, axis: Axis, dim: int) -> Tensor:
    """The adjoint of windows of a padded table along one axis: adds the pairs of each offset in a fixed order.

    grad_pairs: (T, .., w, ..). Returns (.., r, ..), without T and with r at `dim`, in float32 or wider.
    """
    shape = list(grad_pairs.shape[1:])
    shape[dim] = axis.tile + axis.window - 1
    offsets = grad_pairs.new_zeros(shape, dtype=accumulation_dtype(grad_pairs.dtype))
    for t, pairs in enumerate(grad_pairs):
        offsets.narrow(dim, axis.tile - 1 - t, axis.window).add_(pairs)
    return offsets.narrow(dim, axis.table_padding[0], axis.before + 1 + axis.after)


def make_block(table: Tensor, axes: Sequence[Axis]) -> Tensor:
    """Copy the table R (r_1..r_D, k, u) to a contiguous block E (T_1..T_D, k, w_1..w_D, u)."""
    last = len(axes) - 1
    offsets = pad_table(table, axes)
    for i in range(last, 0, -1):
        # Window i starts at offset i, so it belongs to tile position T - 1 - i.
        offsets = offsets.unfold(i, axes[i].window, 1).flip(i)
    # now (offsets of axis 1, T_2..T_D, k, u, w_D..w_2)
    offsets = offsets.permute(*range(1, last + 2), 0, *range(2 * last + 2, last + 2, -1), last + 2)
    tile, window = axes[0].tile, axes[0].window
    block = offsets.new_empty(tile, *offsets.shape[: last + 1], window, *offsets.shape[last + 2 :])
    for t in range(tile):
        block[t].copy_(offsets.narrow(last + 1, tile - 1 - t, window))
    return block


def make_block_backward(grad_block: Tensor, axes: Sequence[Axis]) -> Tensor:
    """The adjoint of `make_block`, in float32 or wider."""
    for axis in axes:  # each removes T_i, so that w_i is at the same place
        grad_block = sum_pairs(grad_block, axis, len(axes))
    return grad_block.movedim(0, -2)
