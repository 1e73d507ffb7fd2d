"""Tiles of query positions with their windows of context positions, and blocks of embeddings for them.

A tile covers a few rows of the first axis of the grid, and some or all positions of every other axis. Windows are
cropped at the ends of the first axis. Along other axes that a tile does not cover completely, windows extend beyond the
grid and are zero-padded.

The embedding of a pair depends only on its offset, so all tiles use the same block E of embeddings. Along one axis,
E[t, w] = R[first + w - t] for tile position t and window position w.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch.nn.functional as F
from torch import Tensor

from lambdanets.ops.position.algorithm import Problem
from lambdanets.ops.precision import accumulation_dtype


@dataclass(frozen=True)
class Axis:
    """One axis of a block: side of the tile, side of the window, and table index of E[0, 0].

    E is zero where the index is outside of the table.
    """

    tile: int
    window: int
    first: int

    def padding(self, side: int) -> tuple[int, int]:
        """Return the padding before and after a table with this side; negative values crop it."""
        before = self.tile - 1 - self.first
        return before, self.tile + self.window - 1 - side - before


@dataclass(frozen=True)
class Tiling:
    """The sides of tiles and windows for a problem with at least two axes, and the number of tiles.

    Tiles along the first axis are processed one at a time; the last one may be smaller.
    """

    problem: Problem
    tile: tuple[int, ...]

    @cached_property
    def covers_axis(self) -> tuple[bool, ...]:
        """Whether a tile covers all positions of each axis."""
        return tuple(tile >= side for tile, side in zip(self.tile, self.problem.grid, strict=True))

    @cached_property
    def window(self) -> tuple[int, ...]:
        """The sides of a window."""
        p = self.problem
        return tuple(
            side if tile >= side else tile + before + after
            for side, tile, before, after in zip(p.grid, self.tile, p.before, p.after, strict=True)
        )

    @cached_property
    def num_tiles(self) -> tuple[int, ...]:
        """Number of tiles along axes 2..D."""
        return tuple(-(-side // tile) for side, tile in zip(self.problem.grid[1:], self.tile[1:], strict=True))

    @cached_property
    def window_padding(self) -> list[tuple[int, int]]:
        """Padding before and after the grid along each axis except the first, to contain all windows."""
        paddings_before = [
            0 if covers else before for covers, before in zip(self.covers_axis, self.problem.before, strict=True)
        ]
        sizes = zip(
            self.num_tiles, self.tile[1:], self.window[1:], paddings_before[1:], self.problem.grid[1:], strict=True
        )
        return [(before, (count - 1) * tile + window - before - side) for count, tile, window, before, side in sizes]

    @cached_property
    def axes(self) -> list[Axis]:
        first_indices = (
            before if covers else 0 for before, covers in zip(self.problem.before, self.covers_axis, strict=True)
        )
        return [Axis(*sizes) for sizes in zip(self.tile, self.window, first_indices, strict=True)]

    @cached_property
    def positions_per_tile_row(self) -> int:
        """Number of positions in one row of a tile, without the first axis."""
        return math.prod(self.tile[1:])

    @cached_property
    def elements_per_window_row(self) -> int:
        """Number of elements in one row of a window, (w_2..w_D, u)."""
        return math.prod(self.window[1:]) * self.problem.intra_depth

    def rows(self) -> Iterator[tuple[int, int, int, int, slice]]:
        """Yield, for each row of tiles, start and stop of its rows and of its window, and the columns in a block."""
        side, before, after = self.problem.grid[0], self.problem.before[0], self.problem.after[0]
        row_size = self.elements_per_window_row
        for start in range(0, side, self.tile[0]):
            stop = min(side, start + self.tile[0])
            if self.covers_axis[0]:
                window_start, window_stop, skipped_rows = 0, side, 0
            else:
                window_start, window_stop = max(0, start - before), min(side, stop + after)
                skipped_rows = window_start - (start - before)
            yield (
                start,
                stop,
                window_start,
                window_stop,
                slice(skipped_rows * row_size, (skipped_rows + window_stop - window_start) * row_size),
            )

    def logits_bytes(self, batch: int) -> int:
        """Return the size of the logits of one row of tiles."""
        p = self.problem
        num_queries = self.tile[0] * self.positions_per_tile_row * p.heads * math.prod(self.num_tiles) * batch
        return max(4, p.dtype.itemsize) * num_queries * min(self.window[0], p.grid[0]) * self.elements_per_window_row

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
    x = _pad(x, tiling.window_padding)
    for i, (tile, window) in enumerate(zip(tiling.tile[1:], tiling.window[1:], strict=True)):
        x = x.unfold(2 + i, window, tile)  # (b, S_1, J_2..J_D, u, v, w_2..w_D)
    d = len(tiling.tile)
    x = x.permute(*range(2, d + 1), 0, 1, *range(d + 3, x.ndim), d + 1, d + 2)
    return x.reshape(-1, p.grid[0], tiling.elements_per_window_row, p.value_depth)


def unpack_values(grad_values: Tensor, tiling: Tiling) -> Tensor:
    """The adjoint of `pack_values`: adds overlapping windows, in float32 or wider."""
    p, d = tiling.problem, len(tiling.tile)
    x = grad_values.view(*tiling.num_tiles, -1, p.grid[0], *tiling.window[1:], p.intra_depth, p.value_depth)
    for tile, side, (before, after) in zip(tiling.tile[1:], p.grid[1:], tiling.window_padding, strict=True):
        # Each iteration removes J_i and replaces w_i by S_i. Without J_i, w_i is always axis d of
        # (J_{i+1}, .., J_D, b, S_1, .., S_{i-1}, w_i, .., w_D, u, v).
        shape = list(x.shape[1:])
        shape[d] = before + side + after
        padded = x.new_zeros(shape, dtype=accumulation_dtype(x.dtype))
        for j, window in enumerate(x):
            padded.narrow(d, j * tile, window.shape[d]).add_(window)
        x = padded.narrow(d, before, side)
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


def make_block(table: Tensor, axes: Sequence[Axis]) -> Tensor:
    """Copy the table R (r_1..r_D, k, u) to a contiguous block E (T_1..T_D, k, w_1..w_D, u)."""
    last = len(axes) - 1
    padding = [axis.padding(side) for axis, side in zip(axes, table.shape, strict=False)]
    offsets = F.pad(table, [0, 0, 0, 0, *(size for pair in reversed(padding) for size in pair)])
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


def make_block_backward(grad_block: Tensor, axes: Sequence[Axis], sides: Sequence[int]) -> Tensor:
    """The adjoint of `make_block` for a table with these sides; sums the pairs of each offset in a fixed order.

    Sums and returns float32 or wider.
    """
    dim = len(axes)  # axis of the window, after the first axis of the tile is removed
    for axis, side in zip(axes, sides, strict=True):
        shape = list(grad_block.shape[1:])
        shape[dim] = axis.tile + axis.window - 1
        offsets = grad_block.new_zeros(shape, dtype=accumulation_dtype(grad_block.dtype))
        for t in range(axis.tile):
            offsets.narrow(dim, axis.tile - 1 - t, axis.window).add_(grad_block[t])
        before, after = axis.padding(side)
        grad_block = F.pad(offsets.movedim(dim, -1), [-before, -after]).movedim(-1, dim)
    return grad_block.movedim(0, -2)
