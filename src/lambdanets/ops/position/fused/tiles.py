"""Chooses tile sizes of the fused kernels: compile-time sizes by rules, tile shapes by the number of steps.

There is no autotuning, so the same problem on the same device is always summed in the same order.

The rules keep programs within resource limits for all numbers of heads. A thread has at most 64 float32 accumulators
and 64 elements of an intermediate result. The buffers of two programs, or of one program with 8 warps, fit into the
shared memory of an SM; three stages need two buffers. Tensor core products have 16 rows, 8 columns and 16 terms. Triton
divides batched products among warps by matrix, so a batch smaller than the number of warps is computed redundantly.
`experiments/kernels.py` compiles and checks all configurations.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from lambdanets.ops.position.fused.device import max_shared_memory

K = 16  # query depth of a launch; larger depths need several launches
PROGRAMS_TO_FILL_GPU = 264  # to occupy a large GPU: two programs on each of 132 SMs
_LARGE_MEMORY = 160 << 10  # bytes of shared memory; GPUs with more use larger tiles


@dataclass(frozen=True)
class Tiles:
    """Compile-time sizes of a kernel.

    positions: positions per tile; each program computes one tile. examples: examples per program.
    step: positions per step. values: value channels per program. warps, stages: Triton's num_warps and num_stages.
    lambda_order: sum lambdas, or the table's gradient from the gradient of lambdas, in one 2-d product.
    """

    positions: int
    examples: int
    step: int
    values: int
    warps: int
    stages: int
    lambda_order: bool = False


def max_value_channels(itemsize: int) -> int:
    """Return the maximum value channels of a launch, which the registers of the gradient kernels limit."""
    return 64 if itemsize > 2 else 128


def kernels_of_order(order: str) -> tuple[str, str]:
    """Return the kernels of the output and of the queries' gradient; order: "query" or "lambda"."""
    return f"forward_{order}_order", "grad_queries" if order == "query" else "grad_queries_lambda_order"


def choose_tiles(
    kernel: str,
    capability: tuple[int, int],
    itemsize: int,
    batch: int,
    heads: int,
    value_depth: int,
) -> Tiles:
    """Choose the sizes for a kernel, with fewer examples for small batches.

    A small map with few programs is not faster with more of them: products then have fewer rows.
    """
    tiles = _large_batch_tiles(kernel, capability, itemsize, heads, value_depth)
    minimum = _min_examples(kernel, next_power_of_2(heads), tiles)
    return replace(tiles, examples=max(min(tiles.examples, next_power_of_2(batch)), minimum))


def _large_batch_tiles(kernel: str, capability: tuple[int, int], itemsize: int, heads: int, value_depth: int) -> Tiles:
    """Return the sizes for a kernel with a large batch and a large map."""
    h = next_power_of_2(heads)
    v = max(16, next_power_of_2(min(value_depth, max_value_channels(itemsize))))
    if itemsize > 2:
        return _for_float32(kernel, h, v)
    large_memory = max_shared_memory(capability) > _LARGE_MEMORY
    if kernel.endswith("lambda_order"):
        # one 2-d product, (examples v) x m times m x (positions k); 128 rows
        return Tiles(8, 128 // v, 32, v, 4 if capability[0] == 9 else 8, 3, lambda_order=True)
    if kernel == "forward_query_order":
        v = min(v, 32 if h == 16 else 64)  # split into blocks, because the accumulators must fit the registers
        if h == 1:
            return Tiles(16, 8 if v == 64 else 16, 16, v, 4 if v == 16 else 8, 3)
        if h == 4 and v == 64:
            return Tiles(16, 4, 16, v, 4, 3)
        positions = 4 if h > 4 else 8
        examples = max(4, (128 if v == 64 else 256) // (h * positions))
        return Tiles(positions, examples, 16, v, 8 if h == 2 and v == 32 else 4, 3)
    if kernel == "grad_queries":
        stages = 3 if v < 128 or large_memory else 2
        if h == 1:
            return Tiles(16, 16 if v < 64 else 8, 16, v, 4 if v == 16 else 8, stages)
        if h == 4 and v == 64 and large_memory:
            return Tiles(16, 8, 16, v, 8, stages)
        deep = v == 128 or (v == 64 and not (large_memory and h > 2))
        positions = (2 if deep else 4) if h == 16 else 4 if h == 8 else 16 if v == 64 and not deep else 8
        examples = max(4, (128 if deep else 256) // (h * positions))
        if v == 128 and not large_memory and h > 2:
            positions //= 2
        return Tiles(positions, examples, 16, v, 8 if h == 2 and v > 16 else 4, stages)
    if kernel == "grad_values":
        if h == 4:
            return Tiles(32, 8 if v <= 32 else 4, 4, min(v, 64), 4, 3)
        v = min(v, 32)
        if h == 1:
            return Tiles(32, 8, 16, v, 8, 3)
        step = 2 if h == 16 and not large_memory else max(4, 16 // h)
        return Tiles({2: 32, 8: 32, 16: 16}[h], 4, step, v, 4, 3)
    if v <= 32 and capability[0] in (9, 10):
        # One 2-d product, (positions k) x (examples v) times (examples v) x step, where warpgroups compute it: k v
        # multiply-adds per pair and example instead of h (k + v), but no intermediate result in shared memory.
        return Tiles(8, 4, 256, 16, 8, 3, lambda_order=True)
    if h == 4 and v > 32 and large_memory:
        return Tiles(8, 4, 32, 64, 4, 3)
    v = min(v, 16 if h == 16 and not large_memory else 32)
    wide = large_memory or v == 16
    if h == 1:
        return Tiles(16, 16, 32 if wide else 16, v, 8, 3)
    if h == 2:
        return Tiles(8, 8, 64 if wide else 32, v, 8, 3)
    if h == 4:
        return Tiles(8, 4, 64 if wide else 32, v, 4, 3)
    return Tiles(8 if large_memory and h == 8 else 4, 4, 32 if large_memory or h == 8 else 16, v, 4, 3)


def _for_float32(kernel: str, h: int, v: int) -> Tiles:
    """Return the sizes for float32, which does not use tensor cores because TF32 would lose precision."""
    if kernel == "grad_values":
        return Tiles(16, 8 if h == 1 else max(1, 16 // h), max(4, 16 // h), min(v, 32), 4, 2)
    if kernel == "grad_queries" and v > 32:
        examples = max(1, 8 // h)
        return Tiles(max(2, 32 // (examples * h)), examples, 16, v, 8, 2)
    v = v if kernel == "grad_queries" else min(v, 32)
    warps = 8 if kernel == "grad_table_partial" and h == 1 and v == 32 else 4  # 4 warps would spill 40 bytes
    return Tiles(8, max(1, 16 // h), 16, v, warps, 2)


def _min_examples(kernel: str, h: int, tiles: Tiles) -> int:
    """Return the minimum number of examples that fills the rows or terms of a product, or the loads of all threads."""
    if kernel == "grad_table_partial":
        return 4 if tiles.lambda_order else max(1, 16 // h)
    if tiles.lambda_order:
        return -(-64 // tiles.values)
    return 1 if kernel == "grad_queries" else 2


def next_power_of_2(minimum: int) -> int:
    """Return the smallest power of two >= `minimum`."""
    return 1 << (minimum - 1).bit_length()


@lru_cache(maxsize=1024)
def choose_tile_shape(
    grid: tuple[int, int], radius: tuple[int, int], positions: int, step: int
) -> tuple[int, int, int, int]:
    """Choose rows and columns of tiles with `positions` positions, and of steps with `step`, for the fewest steps.

    All four are powers of two. If several shapes have the fewest steps, choose the widest, because long rows load
    fastest.
    """
    best, fewest = (1, positions, 1, step), None
    for tile_rows in _powers_of_two(positions, grid[0]):
        for step_rows in _powers_of_two(step, grid[0]):
            tile_columns, step_columns = positions // tile_rows, step // step_rows
            steps = _count_steps(grid, radius, (tile_rows, tile_columns, step_rows, step_columns))
            if fewest is None or steps < fewest:
                best, fewest = (tile_rows, tile_columns, step_rows, step_columns), steps
    return best


@lru_cache(maxsize=1024)
def choose_table_step(grid: tuple[int, int], radius: tuple[int, int], columns: int, step: int) -> tuple[int, int]:
    """Choose row offsets and context columns per program of `grad_table_partial` for the fewest steps.

    Accepts up to 5% more steps for more rows, because consecutive steps then use more of the same values.
    """
    best, fewest = (1, step), None
    for step_rows in _powers_of_two(step, 2 * radius[0] + 1):
        steps = count_chunks(grid, radius, columns, step // step_rows)
        pairs = count_row_pairs(grid[0], radius[0], step_rows)
        if fewest is None or steps * pairs <= 1.05 * fewest:
            best, fewest = (step_rows, step // step_rows), min(steps * pairs, fewest or math.inf)
    return best


def count_chunks(grid: tuple[int, int], radius: tuple[int, int], columns: int, step_columns: int) -> int:
    """Return the number of chunks of step_columns that cover the window of a tile of `columns` query columns."""
    return -(-min(grid[1], columns + 2 * radius[1]) // step_columns)


def count_row_pairs(rows: int, radius: int, step_rows: int) -> int:
    """Return the number of query rows with a context row at one of step_rows offsets, summed over groups of offsets."""
    firsts = range(-radius, radius + 1, step_rows)
    return sum(min(rows - 1, rows - 1 - first) - max(0, 1 - first - step_rows) + 1 for first in firsts)


def _count_steps(grid: tuple[int, int], radius: tuple[int, int], shape: tuple[int, int, int, int]) -> int:
    """Return the total number of steps of all tiles; shape: rows and columns of a tile and of a step."""
    rows, columns, step_rows, step_columns = shape
    return _count_axis_steps(grid[0], radius[0], rows, step_rows) * _count_axis_steps(
        grid[1], radius[1], columns, step_columns
    )


def _powers_of_two(maximum: int, side: int) -> list[int]:
    """Return the powers of two up to `maximum`, ending with the first that is not below the side."""
    return [1 << i for i in range(maximum.bit_length()) if i == 0 or 1 << (i - 1) < side]


def _count_axis_steps(side: int, radius: int, tile: int, step: int) -> int:
    """Return the number of steps of all tiles along one axis."""
    total = 0
    for start in range(0, side, tile):
        first, last = max(start - radius, 0), min(start + tile - 1 + radius, side - 1)
        total += -(-(last - first + 1) // step)
    return total
