"""Sizes of the programs of the fused kernels: what one computes, chosen by heads, depths and shared memory.

A program has a tile of positions. Sizes are powers of two, which Triton compiles in.
"""

import itertools
import math
from functools import lru_cache

import numpy as np

K = 16  # query depth of a launch; larger depths need several launches
VECTOR_BYTES = 16  # size of one vectorized load
WARPGROUPS = 9, 10  # major compute capabilities where warpgroups multiply matrices asynchronously
_PROGRAMS_TO_FILL_GPU = 264  # to occupy a large GPU: two programs on each of 132 SMs
Pair = tuple[int, int]


def max_value_channels(itemsize: int) -> int:
    """Return the value channels of a launch, which registers of the gradient kernels limit."""
    return 64 if itemsize > 2 else 128


# Of `grad_values`, for 1, 2, 4, 8 and 16 heads: TILE, EXAMPLES, STEP, warps
_VALUES_SIZES = ((32, 8, 16, 8), (32, 4, 8, 4), (32, 8, 4, 4), (32, 4, 4, 4), (16, 4, 2, 4))


def choose_constants(
    kernel: str, capability: Pair, itemsize: int, batch: int, heads: int, value_depth: int
) -> dict[str, int]:
    """Choose the compile-time constants of a kernel, such that programs fit the device (`experiments/kernels.py`).

    `fused_kernels.py` explains them. Those for 4 heads are the fastest measured on an H200. Products on
    tensor cores have 16 rows, 8 columns and 16 terms; those of float32 need three times the registers.
    Triton divides batched products among warps by matrix, so a batch smaller than the number of warps is
    computed redundantly. Small batches get fewer examples, but enough for a product or the loads of all
    threads. FMA is explicit because Triton's default may change.
    """
    h, is_float32, warpgroups = next_power_of_2(heads), itemsize > 2, capability[0] in WARPGROUPS
    v = max(16, next_power_of_2(min(value_depth, max_value_channels(itemsize))))
    constants = {"HEADS": heads, "K": K, "VEC": VECTOR_BYTES // itemsize, "num_stages": 3, "enable_fp_fusion": True}
    if kernel == "grad_values":
        tile, examples, step, warps = _VALUES_SIZES[h.bit_length() - 1]
        v, minimum = min(v, 64 if h == 4 else 32), 2
        examples = (4 if v == 64 else examples) // (2 if is_float32 else 1)
        constants |= {"HEADS": h, "num_stages": 2 if is_float32 else 3}
    elif kernel == "grad_table":
        # one product, (TILE K) x (EXAMPLES V) times (EXAMPLES V) x STEP
        tile, warps, minimum = 8, 8, 2 if is_float32 else 1
        step = (256 if warpgroups else 64) // (2 if is_float32 else 1) // (2 if h == 16 else 1)
        v = 16 if is_float32 else min(v, 64 if batch == 1 or v == 128 else 32)
        examples = (32 if is_float32 else 64) // v
    else:  # forward and grad_queries
        # one product, (EXAMPLES V) x STEP times STEP x (TILE K); 128 rows
        tile, step, warps = 8, 16 if is_float32 else 32, 4 if capability[0] == 9 and not is_float32 else 8
        examples, minimum = 128 // v, -(-64 // v)
        constants["GRADIENT"] = kernel == "grad_queries"
    examples = max(min(examples, next_power_of_2(batch)), minimum)
    return constants | {"TILE": tile, "EXAMPLES": examples, "STEP": step, "V": v, "num_warps": warps}


def next_power_of_2(minimum: int) -> int:
    return 1 << (minimum - 1).bit_length()


@lru_cache(maxsize=1024)
def choose_tile_shape(grid: Pair, radius: Pair, tile: int, step: int) -> tuple[int, ...]:
    """Choose rows and columns of tiles, and of steps, with the given sizes, for the fewest steps.

    All are powers of two. Of several shapes, choose the widest: long rows load fastest.
    """
    rows = itertools.product(_powers_of_2(tile), _powers_of_2(step))
    shapes = ((tile_y, tile // tile_y, step_y, step // step_y) for tile_y, step_y in rows)
    return min(shapes, key=lambda s: math.prod(map(_count_steps, grid, radius, s[:2], s[2:])))


def _count_steps(side: int, radius: int, tile: int, step: int) -> int:
    """Return the number of steps of all tiles along one axis."""
    starts = np.arange(0, side, tile)
    lengths = np.minimum(starts + tile + radius, side) - np.maximum(starts - radius, 0)
    return int((-(-lengths // step)).sum())


def _powers_of_2(maximum: int) -> list[int]:
    return [1 << i for i in range(maximum.bit_length())]


@lru_cache(maxsize=1024)
def choose_table_grid(
    grid: Pair, radius: Pair, batch: int, tile: int, examples: int, step: int
) -> tuple[int, int, tuple[int, ...]]:
    """Choose the number of programs of `grad_table`, splits of the batch, and sizes.

    Sizes are row offsets and context columns of a program, numbers of groups of row offsets and of
    chunks of columns, and examples of a split. Offsets and columns are chosen for the fewest steps;
    up to 5% more are accepted for more rows, because consecutive steps then use more of the same
    values. The batch is split to fill at most one wave of programs on the GPU.
    """
    (height, width), offsets = grid, range(-radius[0], radius[0] + 1)
    columns = min(width, tile + 2 * radius[1])
    steps = {}  # by row offsets of a program
    for rows in _powers_of_2(min(step, next_power_of_2(len(offsets)))):
        # query rows with a context row at one of the offsets of a group
        query_rows = (height - max(0, first, 1 - first - rows) for first in offsets[::rows])
        steps[rows] = sum(query_rows) * -(-columns // (step // rows))
    rows = max(rows for rows in steps if steps[rows] <= 1.05 * min(steps.values()))
    row_groups, chunks = len(offsets[::rows]), -(-columns // (step // rows))
    programs = row_groups * chunks * -(-width // tile)
    groups = -(-batch // examples)
    split = -(-groups // min(groups, max(1, _PROGRAMS_TO_FILL_GPU // programs)))
    splits = -(-groups // split)
    return splits * programs, splits, (rows, step // rows, row_groups, chunks, split * examples)
