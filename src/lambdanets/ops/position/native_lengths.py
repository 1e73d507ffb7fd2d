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

# Vector operations of the codelet of each size; those of more than 10 need more than 32 registers, which is slower.
_OPERATIONS: dict[int, float] = {2: 4, 3: 14, 4: 16, 5: 36, 6: 40, 7: 66, 8: 57, 9: 100, 10: 92}
_OPERATIONS |= {12: 1.15 * 104, 13: 1.2 * 204, 14: 1.2 * 160, 15: 1.25 * 178, 16: 1.3 * 161}
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
    """tile: rows and columns of outputs; a sequence is one row. axes: the two transformed axes, also of a sequence.

    lines: transforms along the second axis, one for each row of outputs or, of a sequence, for each point of the first.
    """

    tile: tuple[int, int]
    axes: tuple[Transform, Transform]
    lines: int

    @property
    def instructions(self) -> float:
        """Vector instructions for one pair of query depths and one tile: inverse transforms and products."""
        first, second = self.axes
        return second.n * first.instructions + self.lines * second.instructions + 6 * first.n * second.n


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
    return n * sum(_OPERATIONS[size] / size + 2.4 for size in factors) + twiddles


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
    (rows, first), (columns, second) = map(_axis_of_map, sides, before, after)
    return Transforms((rows, columns), (first, second), lines=rows)


def _axis_of_map(side: int, before: int, after: int) -> tuple[int, Transform]:
    """The outputs of a tile along an axis of a map, and their transform."""
    whole = side + max(before, after)
    candidates = [(side, cheapest_transform(whole))] if whole <= _MAX_LENGTH else []
    for length in _TILE_LENGTHS if side > _TILED_SIDE else ():
        outputs = cheapest_transform(length).n - before - after
        if 0 < outputs < side:
            outputs = -(-side // -(-side // outputs))  # equal tiles
            candidates.append((outputs, cheapest_transform(outputs + before + after)))
    if not candidates:
        raise ValueError(f"supports sides with scope of at most {_MAX_LENGTH}, not {whole}")

    def cost(candidate: tuple[int, Transform]) -> float:
        outputs, transform = candidate
        return -(-side // outputs) * transform.instructions * (1.4 if transform.n > _CACHED_SIDE else 1)

    return min(candidates, key=cost)


def _sequence_transforms(n: int, before: int, after: int) -> Transforms:
    whole = n + max(before, after)
    tiles = [(n, _sequence_axes(whole))] if whole <= _MAX_SEQUENCE else []
    for total in _TILE_POINTS:
        axes = _sequence_axes(total)
        outputs = axes[0].n * axes[1].n - before - after
        if 0 < outputs < n:
            tiles.append((outputs, axes))
    if not tiles:
        raise ValueError(f"supports sequences with scope of at most {_MAX_SEQUENCE}, not {whole}")

    def cost(chosen: Transforms) -> float:
        points = chosen.axes[0].n * chosen.axes[1].n
        slowdown = 1 + 0.15 * max(0.0, math.log2(points / _CACHED_POINTS))
        loads_and_stores = 6 * points
        return -(-n // chosen.tile[1]) * (chosen.instructions + loads_and_stores) * slowdown

    return min((Transforms((1, outputs), axes, lines=axes[0].n) for outputs, axes in tiles), key=cost)


@lru_cache(maxsize=4096)  # plans of other lengths of a sequence have the same few hundred
def twiddles(n: int, columns: int, double: bool) -> NDArray[Any]:
    """exp(-2 pi i a b / n) as [a < n / columns][b < columns], rounded from float64.

    Between two passes of a transform of length n, the columns are the first factor; those of n1 n2, with n2 columns,
    make one sequence of the two axes of a map.
    """
    products = np.outer(np.arange(n // columns), np.arange(columns))
    return np.exp(-2j * math.pi / n * products).astype(np.complex128 if double else np.complex64)
