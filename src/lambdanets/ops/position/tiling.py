"""A grid cut into tiles of query positions, each with its window of context positions, and tensors packed so.

A tile covers a few rows of the grid's first axis and a part, or all, of each other axis. Windows are cut at the ends of
the first axis; along an axis that a tile does not cover whole they reach beyond the grid, and there they hold zeros.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch.nn.functional as F
from torch import Tensor

from lambdanets.ops.position.problem import Problem
from lambdanets.ops.position.scratch import packed
from lambdanets.ops.position.toeplitz import Axis


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
        rows = min(self.window[0], self.problem.grid[0])
        tiles = math.prod(self.counts) * examples
        return (
            max(4, self.problem.dtype.itemsize)
            * self.tile[0]
            * self.positions
            * self.problem.heads
            * tiles
            * rows
            * self.columns
        )

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
    x = _pad(x, _window_padding(tiling))
    for i, (tile, window) in enumerate(zip(tiling.tile[1:], tiling.window[1:], strict=True)):
        x = x.unfold(2 + i, window, tile)  # (b, S_1, J_2..J_D, u, v, w_2..w_D)
    d = len(tiling.tile)
    x = x.permute(*range(2, d + 1), 0, 1, *range(d + 3, x.ndim), d + 1, d + 2)
    # values of a whole grid are taken as they are, though between other channels
    x = x if all(tiling.whole[1:]) and p.intra_depth == 1 else packed("values", x)
    return x.reshape(-1, p.grid[0], tiling.columns, p.value_depth)


def unpack_values(gradient: Tensor, tiling: Tiling) -> Tensor:
    """The adjoint of `pack_values`: what the windows of several tiles say of one position is summed."""
    p, d = tiling.problem, len(tiling.tile)
    x = gradient.view(*tiling.counts, -1, p.grid[0], *tiling.window[1:], p.intra_depth, p.value_depth)
    for i, (tile, side) in enumerate(zip(tiling.tile[1:], p.grid[1:], strict=True)):
        # (J_i, .., b, S_1, .., w_i, ..): the axes of tiles go one by one, those of positions stay
        before, after = _window_padding(tiling)[i]
        shape = list(x.shape[1:])
        shape[d] = before + side + after
        padded = x.new_zeros(shape)
        for j, part in enumerate(x):
            padded.narrow(d, j * tile, part.shape[d]).add_(part)
        x = padded.narrow(d, before, side)
    return x.flatten(1, d).transpose(2, 3)


def _window_padding(tiling: Tiling) -> list[tuple[int, int]]:
    """Zeros before and after the grid along each axis but the first, so that the last window fits."""
    p = tiling.problem
    padding = []
    for i, (tile, count) in enumerate(zip(tiling.tile[1:], tiling.counts, strict=True), 1):
        before = 0 if tiling.whole[i] else p.before[i]
        padding.append((before, (count - 1) * tile + tiling.window[i] - before - p.grid[i]))
    return padding


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
