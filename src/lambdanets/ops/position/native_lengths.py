"""Lengths of the transforms of the native kernel and their outputs (tiles, as in overlap-save), from the sizes alone.

A transform of length n = f_0 f_1 (f_2) runs in two or three passes of straight-line code for the factors (codelets).
A tile of outputs needs the values within the reach of the table around it; a map that is transformed as a whole needs
zeros only on one side, because values wrap around.

Tables are arrays of NumPy, which no default device or mode of PyTorch changes.
"""

import itertools
import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# Vector operations of the codelet of each size, and the slowdown of those that need more than 32 registers.
_OPERATIONS = dict(
    zip(
        (2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 14, 15, 16),
        (4, 14, 16, 36, 40, 66, 57, 100, 92, 104, 204, 160, 178, 161),
        strict=True,
    )
)
_SPILLS = {12: 1.15, 13: 1.2, 14: 1.2, 15: 1.25, 16: 1.3}
_MAX_TWO_PASSES = 120  # above this length, three passes may be faster
_MAX_LENGTH = max(_OPERATIONS) ** 3  # of an axis: three passes
_MAX_SEQUENCE = _MAX_LENGTH**2 // 2  # of two axes, of which one is longer
_TILED_SIDE = 128  # longer sides are divided if that is faster
_TILE_LENGTHS = (32, 48, 64, 80, 96, 112, 128, 135, 144, 160, 192, 256)
_TILE_POINTS = tuple(2**i for i in range(8, 17))  # of sequences
_CACHED_SIDE, _CACHED_POINTS = 150, 8192  # transforms beyond it leave the second-level cache


class Transform(NamedTuple):
    """A transform of length n along an axis. instructions: vector instructions of one."""

    instructions: float
    n: int
    factors: tuple[int, ...]


class Transforms(NamedTuple):
    """tile: outputs along each axis of the grid. axes: the two transformed axes, also of a sequence."""

    tile: tuple[int, ...]
    axes: tuple[Transform, Transform]

    def instructions(self, rows: int) -> float:
        """Vector instructions for one pair of query depths and one tile: inverse transforms and products."""
        first, second = self.axes
        lines = first.n if len(self.tile) == 1 else rows
        return second.n * first.instructions + lines * second.instructions + 6 * first.n * second.n


@lru_cache(maxsize=4096)
def cheapest_transform(minimum: int) -> Transform:
    """The transform of at least this length with the fewest instructions."""
    sizes = sorted(_OPERATIONS, reverse=True)  # a larger first factor is faster
    pairs = itertools.combinations_with_replacement(sizes, 2)
    candidates: list[tuple[int, ...]] = [f for f in pairs if math.prod(f) >= minimum]
    if minimum > _MAX_TWO_PASSES:
        triples = itertools.combinations_with_replacement(sizes, 3)
        candidates += [f for f in triples if minimum <= math.prod(f) < 1.5 * minimum + 64]
    return min(Transform(_instructions(factors), math.prod(factors), factors) for factors in candidates)


def _instructions(factors: tuple[int, ...]) -> float:
    """Instructions of the passes, and of the twiddles between them."""
    n = math.prod(factors)
    twiddles = 6 * (n - factors[1]) if len(factors) == 2 else 12 * n
    return n * sum(map(_per_point, factors)) + twiddles


def _per_point(size: int) -> float:
    return _SPILLS.get(size, 1) * _OPERATIONS[size] / size + 2.4


@lru_cache(maxsize=1024)
def _sequence_axes(minimum: int) -> tuple[Transform, Transform]:
    """Two axes whose product is at least the minimum, the second about one to four times as long as the first."""
    root = math.sqrt(minimum)
    candidates = {}
    for target in range(max(4, int(root / 2)), max(5, int(root) + 2)):
        first = cheapest_transform(target)
        rest = max(4, -(-minimum // first.n))
        if first.n not in candidates and rest <= _MAX_LENGTH:
            second = cheapest_transform(rest)
            candidates[first.n] = (first.instructions * second.n + second.instructions * first.n, first, second)
    _, first, second = min(candidates.values())
    return first, second


@lru_cache(maxsize=4096)
def choose_transforms(sides: tuple[int, ...], before: tuple[int, ...], after: tuple[int, ...]) -> Transforms:
    """Choose tiles and transforms of a sequence (one side) or a map (two sides), for a table with this reach."""
    if len(sides) == 1:
        return _sequence_transforms(sides[0], before[0], after[0])
    axes, tile = [], []
    for side, b, a in zip(sides, before, after, strict=True):
        whole = side + max(b, a)
        candidates = [(cheapest_transform(whole), side)] if whole <= _MAX_LENGTH else []
        for length in _TILE_LENGTHS if side > _TILED_SIDE else ():
            outputs = cheapest_transform(length).n - a - b
            if 0 < outputs < side:
                outputs = -(-side // -(-side // outputs))  # equal tiles
                candidates.append((cheapest_transform(outputs + a + b), outputs))
        if not candidates:
            raise ValueError(f"supports sides with scope of at most {_MAX_LENGTH}, not {whole}")
        costs = [
            -(-side // outputs) * axis.instructions * (1.4 if axis.n > _CACHED_SIDE else 1)
            for axis, outputs in candidates
        ]
        axis, outputs = candidates[costs.index(min(costs))]
        axes.append(axis)
        tile.append(outputs)
    return Transforms(tuple(tile), (axes[0], axes[1]))


def _sequence_transforms(n: int, before: int, after: int) -> Transforms:
    whole = n + max(before, after)
    candidates = [Transforms((n,), _sequence_axes(whole))] if whole <= _MAX_SEQUENCE else []
    for total in _TILE_POINTS:
        axes = _sequence_axes(total)
        outputs = axes[0].n * axes[1].n - before - after
        if 0 < outputs < n:
            candidates.append(Transforms((outputs,), axes))

    def cost(chosen: Transforms) -> float:
        points = chosen.axes[0].n * chosen.axes[1].n
        slowdown = 1 + 0.15 * max(0.0, math.log2(points / _CACHED_POINTS))
        loads_and_stores = 6 * points
        return -(-n // chosen.tile[0]) * (chosen.instructions(rows=1) + loads_and_stores) * slowdown

    if not candidates:
        raise ValueError(f"supports sequences with scope of at most {_MAX_SEQUENCE}, not {whole}")
    return min(candidates, key=cost)


@lru_cache(maxsize=4096)  # plans of other lengths of a sequence have the same few hundred
def twiddles(n: int, rows: int, columns: int, double: bool) -> NDArray[Any]:
    """exp(-2 pi i a b / n) as [a < rows][b < columns], rounded from float64.

    Between two passes of a transform of length n = f rest, they are of rest and f; those of n1 and n2, with n = n1 n2,
    make one sequence of the two axes of a map.
    """
    products = np.outer(np.arange(rows), np.arange(columns))
    return np.exp(-2j * math.pi / n * products).astype(np.complex128 if double else np.complex64)
