"""Sizes of the programs of the fused kernels: what one computes, chosen by heads, depths and shared memory.

A program has a tile of positions like those of `windows.py`, but its sizes are powers of two that Triton compiles in.
"""

import itertools
import math
from functools import lru_cache
from typing import NamedTuple

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
    lambda_order: bool = False  # sum lambdas or, of the table, their gradients, in one 2-d product


def max_value_channels(itemsize: int) -> int:
    """Return the value channels of a launch, which registers of the gradient kernels limit."""
    return 64 if itemsize > 2 else 128


# ProgramSizes of the query order in bfloat16 for 1, 2, 4, 8 and 16 heads, by value channels. Those for 4
# heads are the fastest measured on an H200.
_QUERY_TILES = {  # positions, examples, warps
    16: ((16, 16, 4), (8, 16, 4), (8, 8, 4), (4, 8, 4), (4, 4, 4)),
    32: ((16, 16, 8), (8, 16, 8), (8, 8, 4), (4, 8, 4), (4, 4, 4)),
    64: ((16, 8, 8), (8, 8, 8), (16, 8, 8), (4, 8, 4), (4, 4, 4)),
    128: ((16, 8, 8), (8, 8, 8), (8, 4, 4), (4, 4, 4), (2, 4, 4)),
    256: ((16, 8, 8), (8, 8, 8), (4, 4, 4), (2, 4, 4), (1, 4, 4)),  # 128 with less shared memory
}
_FORWARD_TILES_64 = ((16, 8, 8), (8, 8, 4), (16, 4, 4), (4, 4, 4))
# positions, examples, step, warps
_VALUES_TILES = ((32, 8, 16, 8), (32, 4, 8, 4), (32, 8, 4, 4), (32, 4, 4, 4), (16, 4, 4, 4))
_TABLE_TILES = ((16, 16, 32, 8), (8, 8, 64, 8), (8, 4, 64, 4), (8, 4, 32, 4), (4, 4, 32, 4))


def choose_program_sizes(
    kernel: str, capability: Pair, itemsize: int, batch: int, heads: int, value_depth: int
) -> ProgramSizes:
    """Choose the sizes for a kernel, such that programs fit the device (`experiments/kernels.py`).

    A thread has at most 64 float32 accumulators and 64 elements of an intermediate result. Two
    programs, or one with 8 warps, fit into the shared memory of an SM. Products on tensor cores
    have 16 rows, 8 columns and 16 terms. Triton divides batched products among warps by matrix, so
    a batch smaller than the number of warps is computed redundantly. Small batches get fewer
    examples, but enough for the rows or terms of a product, or the loads of all threads.
    """
    h = next_power_of_2(heads)
    v = max(16, next_power_of_2(min(value_depth, max_value_channels(itemsize))))
    choose = _float32_tiles if itemsize > 2 else _bfloat16_tiles
    tiles = choose(kernel, capability, h, v)
    if kernel == "grad_table":
        minimum = 4 if tiles.lambda_order else max(1, 16 // h)
    elif tiles.lambda_order:
        minimum = -(-64 // tiles.values)
    else:
        minimum = 1 if kernel == "grad_queries" else 2
    return tiles._replace(examples=max(min(tiles.examples, next_power_of_2(batch)), minimum))


def _bfloat16_tiles(kernel: str, capability: Pair, h: int, v: int) -> ProgramSizes:
    """Return the sizes for large batches and maps."""
    warpgroups, i = capability[0] in WARPGROUPS, h.bit_length() - 1
    large_memory = warpgroups or capability in ((8, 0), (8, 7))  # more than 160 KiB per SM
    if kernel.endswith("lambda_order"):
        # one 2-d product, (examples v) x m times m x (positions k); 128 rows
        return ProgramSizes(8, 128 // v, 32, v, 4 if capability[0] == 9 else 8, lambda_order=True)
    if kernel == "forward_query_order":
        v = min(v, 32 if h == 16 else 64)  # because the accumulators must fit the registers
        positions, examples, warps = (_FORWARD_TILES_64 if v == 64 else _QUERY_TILES[v])[i]
        return ProgramSizes(positions, examples, 16, v, warps)
    if kernel == "grad_queries":
        positions, examples, warps = _QUERY_TILES[v if v < 64 or large_memory else 2 * v][i]
        return ProgramSizes(positions, examples, 16, v, warps, 3 if v < 128 or large_memory else 2)
    if kernel == "grad_values":
        positions, examples, step, warps = _VALUES_TILES[i]
        if h == 4 and v > 32:
            return ProgramSizes(positions, 4, step, 64, warps)
        step = 2 if h == 16 and not large_memory else step
        return ProgramSizes(positions, examples, step, min(v, 32), warps)
    if v <= 32 and warpgroups:
        # One 2-d product, (positions k) x (examples v) times (examples v) x step: k v multiply-adds
        # per pair and example instead of h (k + v), but no intermediate result in shared memory.
        return ProgramSizes(8, 4, 256, 16, 8, lambda_order=True)
    if h == 4 and v > 32 and large_memory:
        return ProgramSizes(8, 4, 32, 64, 4)
    positions, examples, step, warps = _TABLE_TILES[i]
    v = min(v, 32 if h < 16 or large_memory else 16)
    if not large_memory and h == 8:
        positions = 4
    elif not large_memory and (v == 32 or h == 16):
        step //= 2
    return ProgramSizes(positions, examples, step, v, warps)


def _float32_tiles(kernel: str, capability: Pair, h: int, v: int) -> ProgramSizes:
    """Return the sizes for float32, which does not use tensor cores: TF32 would lose precision."""
    if kernel == "grad_values":
        return ProgramSizes(16, 8 if h == 1 else 16 // h, max(4, 16 // h), min(v, 32), 4, 2)
    if kernel == "grad_queries" and v > 32:
        examples = max(1, 8 // h)
        return ProgramSizes(max(2, 32 // (examples * h)), examples, 16, v, 8, 2)
    v = min(v, 32)
    spills = kernel == "grad_table" and h == 1 and v == 32  # 40 bytes with 4 warps
    return ProgramSizes(8, 16 // h, 16, v, 8 if spills else 4, 2)


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
    starts = range(0, side, tile)
    windows = ((max(x - radius, 0), min(x + tile - 1 + radius, side - 1)) for x in starts)
    return sum(-(-(last - first + 1) // step) for first, last in windows)


def _powers_of_2(maximum: int) -> list[int]:
    return [1 << i for i in range(maximum.bit_length())]


@lru_cache(maxsize=1024)
def choose_table_grid(grid: Pair, radius: Pair, batch: int, tiles: ProgramSizes) -> tuple[int, int, tuple[int, ...]]:
    """Choose the number of programs of `grad_table_partial`, splits of the batch, and sizes.

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
