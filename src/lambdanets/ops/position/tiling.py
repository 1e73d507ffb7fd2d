"""A grid cut into tiles of query positions, each with its window of context positions; blocks of embeddings for them.

A tile covers a few rows of the grid's first axis and a part, or all, of each other axis. Windows are cut at the ends of
the first axis; along an axis that a tile does not cover whole they reach beyond the grid, and there they hold zeros.

The embedding of a pair depends on its offset alone, so one block E serves every tile. Along an axis
E[t, w] = R[first + w - t], for tile position t and window position w.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch.nn.functional as F
from torch import Tensor

from lambdanets.ops.position.problem import Problem
from lambdanets.ops.position.scratch import packed


@dataclass(frozen=True)
class Axis:
    """One axis of a block: sides of tile and window, and which entry of the table t = 0 has for w = 0.

    That and other entries may lie outside of the table; they count as zero.
    """

    tile: int
    window: int
    first: int

    def padding(self, side: int) -> tuple[int, int]:
        """Entries to add before and after a table of this side, negative to crop, so that each offset has its own."""
        before = self.tile - 1 - self.first
        return before, self.tile + self.window - 1 - side - before


@dataclass(frozen=True)
class Tiling:
    """How a problem on at least two axes is cut: by sides of the tile and of its window, and the number of tiles.

    The tiles of the first axis are taken one after the other, the last of them may be smaller.
    """

    problem: Problem
    tile: tuple[int, ...]

    @cached_property
    def whole(self) -> tuple[bool, ...]:
        return tuple(tile >= side for tile, side in zip(self.tile, self.problem.grid, strict=True))

    @cached_property
    def window(self) -> tuple[int, ...]:
        p = self.problem
        return tuple(
            side if whole else tile + before + after
            for whole, side, tile, before, after in zip(self.whole, p.grid, self.tile, p.before, p.after, strict=True)
        )

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Tiles along each axis but the first."""
        return tuple(-(-side // tile) for side, tile in zip(self.problem.grid[1:], self.tile[1:], strict=True))

    @cached_property
    def window_padding(self) -> list[tuple[int, int]]:
        """Zeros before and after the grid along each axis but the first, so that the last window fits."""
        befores = [0 if whole else before for whole, before in zip(self.whole, self.problem.before, strict=True)]
        sizes = zip(self.counts, self.tile[1:], self.window[1:], befores[1:], self.problem.grid[1:], strict=True)
        return [(before, (count - 1) * tile + window - before - side) for count, tile, window, before, side in sizes]

    @cached_property
    def axes(self) -> list[Axis]:
        firsts = (before if whole else 0 for before, whole in zip(self.problem.before, self.whole, strict=True))
        return [Axis(*sides) for sides in zip(self.tile, self.window, firsts, strict=True)]

    @cached_property
    def positions(self) -> int:
        """Of one row of a tile: those of all axes but the first."""
        return math.prod(self.tile[1:])

    @cached_property
    def columns(self) -> int:
        """Numbers to a row of the window: (w_2..w_D, u)."""
        return math.prod(self.window[1:]) * self.problem.intra_depth

    def rows(self) -> Iterator[tuple[int, int, int, int, slice]]:
        """For each row of tiles: its first row and past its last, those of its window, and the window in a block."""
        side, before, after = self.problem.grid[0], self.problem.before[0], self.problem.after[0]
        for start in range(0, side, self.tile[0]):
            stop = min(side, start + self.tile[0])
            if self.whole[0]:
                low, high, skipped = 0, side, 0
            else:
                low, high = max(0, start - before), min(side, stop + after)
                skipped = low - (start - before)
            yield start, stop, low, high, slice(skipped * self.columns, (skipped + high - low) * self.columns)

    def logits_bytes(self, examples: int) -> int:
        """Size of the logits of one row of tiles."""
        p = self.problem
        queries = self.tile[0] * self.positions * p.heads * math.prod(self.counts) * examples
        return max(4, p.dtype.itemsize) * queries * min(self.window[0], p.grid[0]) * self.columns

    def split(self, x: Tensor) -> Tensor:
        """(b, S_1..S_D, ...) to (b, S_1, J_2, T_2, .., J_D, T_D, ...), padded with zeros where tiles reach beyond."""
        sides = [count * tile for count, tile in zip(self.counts, self.tile[1:], strict=True)]
        x = _pad(x, [(0, padded - side) for padded, side in zip(sides, self.problem.grid[1:], strict=True)])
        for i, (count, tile) in enumerate(zip(self.counts, self.tile[1:], strict=True)):
            x = x.unflatten(2 + 2 * i, (count, tile))
        return x

    def join(self, x: Tensor) -> Tensor:
        """The inverse of `split`."""
        for i, side in enumerate(self.problem.grid[1:]):
            x = x.flatten(2 + i, 3 + i).narrow(2 + i, 0, side)
        return x

    @cached_property
    def tiles_first(self) -> list[int]:
        """Permutation of what `split` returns, without what follows: (J_2..J_D, b, S_1, T_2..T_D)."""
        others = len(self.tile) - 1
        return [*range(2, 2 + 2 * others, 2), 0, 1, *range(3, 3 + 2 * others, 2)]


def _pad(x: Tensor, pads: list[tuple[int, int]]) -> Tensor:
    """x (b, S_1, S_2..S_D, ...) with zeros before and after along S_2..S_D."""
    if not any(itertools.chain(*pads)):
        return x
    behind = x.ndim - 2 - len(pads)
    return F.pad(x, [0, 0] * behind + [entries for pair in reversed(pads) for entries in pair])


def pack_queries(queries: Tensor, tiling: Tiling) -> Tensor:
    """(b, h, n, k) to (S_1, (T_2..T_D), (h, J, b), k)."""
    x = tiling.split(queries.transpose(1, 2).unflatten(1, tiling.problem.grid))
    order = tiling.tiles_first
    d = len(tiling.tile)
    x = x.permute(order[d], *order[d + 1 :], x.ndim - 2, *order[:d], x.ndim - 1)
    return packed("queries", x).view(x.shape[0], tiling.positions, -1, x.shape[-1])


def unpack_queries(gradient: Tensor, tiling: Tiling) -> Tensor:
    """The inverse of `pack_queries`, for their gradient."""
    p, d = tiling.problem, len(tiling.tile)
    x = gradient.view(p.grid[0], *tiling.tile[1:], p.heads, *tiling.counts, -1, p.query_depth)
    # (S_1, T_2.., h, J_2.., b, k) to (b, S_1, J_2, T_2, .., h, k)
    pairs = [place for i in range(1, d) for place in (d + i, i)]
    x = x.permute(2 * d, 0, *pairs, d, 2 * d + 1)
    return tiling.join(x).flatten(1, d).transpose(1, 2)


def pack_values(values: Tensor, tiling: Tiling) -> Tensor:
    """(b, n, v, u) to ((J, b), S_1, (w_2..w_D, u), v): each tile's window, along all of the first axis."""
    p = tiling.problem
    x = values.transpose(2, 3).unflatten(1, p.grid)  # (b, S_1..S_D, u, v)
    x = _pad(x, tiling.window_padding)
    for i, (tile, window) in enumerate(zip(tiling.tile[1:], tiling.window[1:], strict=True)):
        x = x.unfold(2 + i, window, tile)  # (b, S_1, J_2..J_D, u, v, w_2..w_D)
    d = len(tiling.tile)
    x = x.permute(*range(2, d + 1), 0, 1, *range(d + 3, x.ndim), d + 1, d + 2)
    # values of a whole grid are taken as they are, though between other channels
    x = x if all(tiling.whole[1:]) and p.intra_depth == 1 else packed("values", x)
    return x.reshape(-1, p.grid[0], tiling.columns, p.value_depth)


def unpack_values(gradient: Tensor, tiling: Tiling) -> Tensor:
    """The adjoint of `pack_values`: windows overlap, so each position sums what it has in all of them."""
    p, d = tiling.problem, len(tiling.tile)
    x = gradient.view(*tiling.counts, -1, p.grid[0], *tiling.window[1:], p.intra_depth, p.value_depth)
    for tile, side, (before, after) in zip(tiling.tile[1:], p.grid[1:], tiling.window_padding, strict=True):
        # Each turn takes the first axis away and puts positions in place of a window: in what is left of
        # (J_i, .., J_D, b, S_1, .., S_{i-1}, w_i, .., w_D, u, v) without J_i, w_i is always axis d.
        shape = list(x.shape[1:])
        shape[d] = before + side + after
        padded = x.new_zeros(shape)
        for j, window in enumerate(x):
            padded.narrow(d, j * tile, window.shape[d]).add_(window)
        x = padded.narrow(d, before, side)
    return x.flatten(1, d).transpose(2, 3)


def pack_outputs(gradient: Tensor, tiling: Tiling) -> Tensor:
    """(b, h, n, v) to ((J, b), S_1, (T_2..T_D, h), v)."""
    p = tiling.problem
    x = tiling.split(gradient.transpose(1, 2).unflatten(1, p.grid))
    x = x.permute(*tiling.tiles_first, x.ndim - 2, x.ndim - 1)
    return packed("outputs", x).view(-1, p.grid[0], tiling.positions * p.heads, p.value_depth)


def unpack_outputs(result: Tensor, tiling: Tiling) -> Tensor:
    """The inverse of `pack_outputs`; the result is contiguous as (b, n, h, v)."""
    p, d = tiling.problem, len(tiling.tile)
    x = result.view(*tiling.counts, -1, p.grid[0], *tiling.tile[1:], p.heads, p.value_depth)
    pairs = [place for i in range(d - 1) for place in (i, d + 1 + i)]
    x = tiling.join(x.permute(d - 1, d, *pairs, x.ndim - 2, x.ndim - 1))
    return x.flatten(1, d).transpose(1, 2)


def make_block(table: Tensor, axes: Sequence[Axis]) -> Tensor:
    """R (r_1..r_D, k, u) to E (T_1..T_D, k, w_1..w_D, u), contiguous. Cost: copies, no arithmetic."""
    last = len(axes) - 1
    padding = [axis.padding(side) for axis, side in zip(axes, table.shape, strict=False)]
    offsets = F.pad(table, [0, 0, 0, 0, *(entries for pair in reversed(padding) for entries in pair)])
    for i in range(last, 0, -1):
        # window i starts at offset i, and so belongs to tile position T - 1 - i
        offsets = offsets.unfold(i, axes[i].window, 1).flip(i)
    # now (offsets of axis 1, T_2..T_D, k, u, w_D..w_2)
    offsets = offsets.permute(*range(1, last + 2), 0, *range(2 * last + 2, last + 2, -1), last + 2)
    tile, window = axes[0].tile, axes[0].window
    made = offsets.new_empty(tile, *offsets.shape[: last + 1], window, *offsets.shape[last + 2 :])
    for t in range(tile):
        made[t].copy_(offsets.narrow(last + 1, tile - 1 - t, window))
    return made


def sum_of_block(gradient: Tensor, axes: Sequence[Axis], sides: Sequence[int]) -> Tensor:
    """The adjoint of `make_block` for a table of these sides: the pairs of each offset summed in a fixed order."""
    at = len(axes)  # the place of the window, once the first axis of the tile is gone
    for axis, side in zip(axes, sides, strict=True):
        shape = list(gradient.shape[1:])
        shape[at] = axis.tile + axis.window - 1
        offsets = gradient.new_zeros(shape)
        for t in range(axis.tile):
            offsets.narrow(at, axis.tile - 1 - t, axis.window).add_(gradient[t])
        before, after = axis.padding(side)
        gradient = F.pad(offsets.movedim(at, -1), [-before, -after]).movedim(-1, at)
    return gradient.movedim(0, -2)
