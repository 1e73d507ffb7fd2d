"""Sizes of the programs of the fused kernels: what one computes, chosen by heads, depths and shared memory.

A program has a tile of positions. Sizes are powers of two, which Triton compiles in.
"""

import itertools
import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

WARPGROUPS = 9, 10  # major compute capabilities where warpgroups multiply matrices asynchronously
_PROGRAMS_TO_FILL_GPU = 264  # to occupy a large GPU: two programs on each of 132 SMs
Pair = tuple[int, int]


class ProgramSizes(NamedTuple):
    """Compile-time sizes of a kernel."""

    positions: int  # of a tile; a program computes one tile
    examples: int  # of a program
    step: int  # positions of a step
    values: int  # value channels of a program
    warps: int
    stages: int = 3


def max_value_channels(itemsize: int) -> int:
    """Return the value channels of a launch, which registers of the gradient kernels limit."""
    return 64 if itemsize > 2 else 128


# Of `grad_values`, for 1, 2, 4, 8 and 16 heads: positions, examples, step, warps
_VALUES_SIZES = ((32, 8, 16, 8), (32, 4, 8, 4), (32, 8, 4, 4), (32, 4, 4, 4), (16, 4, 2, 4))


def choose_program_sizes(
    kernel: str, capability: Pair, itemsize: int, batch: int, heads: int, value_depth: int
) -> ProgramSizes:
    """Choose the sizes for a kernel, such that programs fit the device (`experiments/kernels.py`).

    Those for 4 heads are the fastest measured on an H200. Products on tensor cores have 16 rows, 8
    columns and 16 terms; those of float32 need three times the registers. Triton divides batched
    products among warps by matrix, so a batch smaller than the number of warps is computed
    redundantly. Small batches get fewer examples, but enough for a product or the loads of all threads.
    """
    h, is_float32, warpgroups = next_power_of_2(heads), itemsize > 2, capability[0] in WARPGROUPS
    v = max(16, next_power_of_2(min(value_depth, max_value_channels(itemsize))))
    if kernel == "grad_values":
        positions, examples, step, warps = _VALUES_SIZES[h.bit_length() - 1]
        v, minimum = min(v, 64 if h == 4 else 32), 2
        examples = (4 if v == 64 else examples) // (2 if is_float32 else 1)
        sizes = ProgramSizes(positions, examples, step, v, warps, 2 if is_float32 else 3)
    elif kernel == "grad_table":
        # one product, (positions k) x (examples v) times (examples v) x step
        step = (256 if warpgroups else 64) // (2 if is_float32 else 1) // (2 if h == 16 else 1)
        v = 16 if is_float32 else min(v, 64 if batch == 1 or v == 128 else 32)
        sizes = ProgramSizes(8, (32 if is_float32 else 64) // v, step, v, 8)
        minimum = 2 if is_float32 else 1
    else:  # forward and grad_queries
        # one product, (examples v) x m times m x (positions k); 128 rows
        warps = 4 if capability[0] == 9 and not is_float32 else 8
        sizes, minimum = ProgramSizes(8, 128 // v, 16 if is_float32 else 32, v, warps), -(-64 // v)
    return sizes._replace(examples=max(min(sizes.examples, next_power_of_2(batch)), minimum))


def next_power_of_2(minimum: int) -> int:
    return 1 << (minimum - 1).bit_length()


@lru_cache(maxsize=1024)
def choose_tile_shape(grid: Pair, radius: Pair, positions: int, step: int) -> tuple[int, ...]:
    """Choose rows and columns of tiles, and of steps, with the given sizes, for the fewest steps.

    All are powers of two. Of several shapes, choose the widest: long rows load fastest.
    """
    rows = itertools.product(_powers_of_2(positions), _powers_of_2(step))
    shapes = ((tile_y, positions // tile_y, step_y, step // step_y) for tile_y, step_y in rows)
    return min(shapes, key=lambda s: math.prod(map(_count_steps, grid, radius, s[:2], s[2:])))


def _count_steps(side: int, radius: int, tile: int, step: int) -> int:
    """Return the number of steps of all tiles along one axis."""
    starts = np.arange(0, side, tile)
    lengths = np.minimum(starts + tile + radius, side) - np.maximum(starts - radius, 0)
    return int((-(-lengths // step)).sum())


def _powers_of_2(maximum: int) -> list[int]:
    return [1 << i for i in range(maximum.bit_length())]


@lru_cache(maxsize=1024)
def choose_table_grid(grid: Pair, radius: Pair, batch: int, tiles: ProgramSizes) -> tuple[int, int, tuple[int, ...]]:
    """Choose the number of programs of `grad_table`, splits of the batch, and sizes.

    Sizes are row offsets and context columns of a program, numbers of groups of row offsets and of
    chunks of columns, and examples of a split. Offsets and columns are chosen for the fewest steps;
    up to 5% more are accepted for more rows, because consecutive steps then use more of the same
    values. The batch is split to fill at most one wave of programs on the GPU.
    """
    height, columns = grid[0], min(grid[1], tiles.positions + 2 * radius[1])
    offsets, counts = 2 * radius[0] + 1, {}
    for rows in _powers_of_2(min(tiles.step, next_power_of_2(offsets))):
        # query rows with a context row at one of the offsets, summed over groups of offsets
        pairs = sum(
            min(height - 1, height - 1 - first) - max(0, 1 - first - rows) + 1
            for first in range(-radius[0], radius[0] + 1, rows)
        )
        counts[rows] = pairs * -(-columns // (tiles.step // rows))
    rows = max(rows for rows in counts if counts[rows] <= 1.05 * min(counts.values()))
    row_groups, chunks = -(-offsets // rows), -(-columns // (tiles.step // rows))
    programs = row_groups * chunks * -(-grid[1] // tiles.positions)
    groups = -(-batch // tiles.examples)
    split = -(-groups // min(groups, max(1, _PROGRAMS_TO_FILL_GPU // programs)))
    splits = -(-groups // split)
    sizes = (rows, tiles.step // rows, row_groups, chunks, split * tiles.examples)
    return splits * programs, splits, sizes
