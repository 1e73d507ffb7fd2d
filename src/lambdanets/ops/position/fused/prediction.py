"""Cost model of the fused kernels on a GPU, fitted to 146 measurements of kernels on an H200.

A kernel takes as long as its busiest SM, which runs its programs' steps one after the other. A step costs clock cycles
for its multiply-adds on tensor cores, for the intermediate result of two products, which changes its layout in shared
memory, and for its latency; a program costs cycles for loading the first operands and writing the result. The L2 cache
is no bottleneck: it delivered 9.3 TB/s, several times what the kernels read, and loads through L1 were not faster.
For nine in ten of these measurements the model is within a factor of 1.5. Cycles are
taken to be the same on other GPUs; `lambdanets calibrate` measures correction factors.
"""

import math
from dataclasses import dataclass

from lambdanets.ops.position.fused.launches import choose_table_grid, grid_2d, radius_2d
from lambdanets.ops.position.fused.tiles import (
    K,
    Tiles,
    choose_tile_shape,
    choose_tiles,
    count_steps,
    next_power_of_2,
)
from lambdanets.ops.position.gpus import GpuSpec
from lambdanets.ops.position.problem import Problem


@dataclass(frozen=True)
class Cycles:
    """Clock cycles of an SM, fitted to measurements.

    step: latency of a step of 8 warps; programs with fewer hide each other's. element: per element of the
    intermediate result of two products. multiply_adds: relative to
    the peak rate of the tensor cores or, in float32, of the other units. program: per program of 32,768 accumulators.
    """

    step: float
    element: float
    multiply_adds: float
    program: float


_QUERY_ORDER = Cycles(0, 0.25, 1.3, 7000)
_LAMBDA_ORDER = Cycles(430, 0, 1.26, 11_000)
_GRAD_VALUES = Cycles(260, 0.1, 1.3, 7000)
_TABLE_QUERY_ORDER = Cycles(0, 0.35, 1.3, 7000)
_TABLE_LAMBDA_ORDER = Cycles(1500, 0, 2, 7000)
_LAUNCH_SECONDS = 2e-6  # until the first programs run, and for the last ones
_FLOAT32 = {  # without tensor cores
    "forward_query_order": Cycles(0, 0, 4.6, 0),
    "grad_queries": Cycles(0, 0, 5.9, 0),
    "grad_values": Cycles(0, 0, 11, 0),
    "grad_table_partial": Cycles(0, 0, 5.7, 0),
}


def _fitted_cycles(kernel: str, itemsize: int, lambda_order: bool) -> Cycles:
    if itemsize > 2:
        return _FLOAT32[kernel]
    if lambda_order:
        return _TABLE_LAMBDA_ORDER if kernel == "grad_table_partial" else _LAMBDA_ORDER
    if kernel == "grad_table_partial":
        return _TABLE_QUERY_ORDER
    return _GRAD_VALUES if kernel == "grad_values" else _QUERY_ORDER


def kernel_seconds(kernel: str, problem: Problem, capability: tuple[int, int], gpu: GpuSpec) -> float:
    """Predict the seconds of one launch; the problem must fit a single launch."""
    itemsize, h = problem.dtype.itemsize, next_power_of_2(problem.heads)
    tiles = choose_tiles(kernel, capability, itemsize, problem.batch, problem.heads, problem.value_depth)
    programs, steps = count_programs_and_steps(kernel, problem, tiles)
    cycles = _fitted_cycles(kernel, itemsize, tiles.lambda_order)
    n, b, m, v = tiles.positions, tiles.examples, tiles.step, tiles.values
    multiply_adds = b * v * n * K * m if tiles.lambda_order else b * h * n * m * (K + v)
    peak = gpu.float32_flops if itemsize > 2 else gpu.bfloat16_flops
    step = multiply_adds / (peak / 2 / gpu.clock / gpu.num_sms) * cycles.multiply_adds
    step += cycles.step * tiles.warps / 8 + (0 if tiles.lambda_order else cycles.element * b * h * n * m)
    accumulators = {"grad_values": b * n * v, "grad_table_partial": n * m * K}.get(kernel, b * n * K * v)
    program = steps / programs * step + cycles.program * min(1, accumulators / 32_768)
    seconds = _LAUNCH_SECONDS + math.ceil(programs / gpu.num_sms) * program / gpu.clock
    b, n, k, v = problem.batch, problem.num_positions, problem.query_depth, problem.value_depth
    memory_bytes = itemsize * b * n * (problem.heads * (k + v) + v)
    if kernel == "grad_table_partial":
        memory_bytes += 2 * 4 * programs * tiles.positions * tiles.step * K  # partial sums, written and read
    return max(seconds, memory_bytes / (0.8 * gpu.memory_bandwidth))


def count_programs_and_steps(kernel: str, problem: Problem, tiles: Tiles) -> tuple[int, int]:
    """Return the number of programs of a launch, and of the steps of all of them."""
    groups, blocks = -(-problem.batch // tiles.examples), -(-problem.value_depth // tiles.values)
    grid, radius = grid_2d(problem), radius_2d(problem)
    if kernel == "grad_table_partial":
        launch_grid = choose_table_grid(problem, tiles)
        column_tiles = -(-grid[1] // tiles.positions)
        return launch_grid.programs, launch_grid.rows * groups * blocks * launch_grid.chunks * column_tiles
    shape = choose_tile_shape(grid, radius, tiles.positions, tiles.step)
    groups *= 1 if kernel.startswith("grad_queries") else blocks
    tiles_of_map = -(-grid[0] // shape[0]) * -(-grid[1] // shape[1])
    return tiles_of_map * groups, count_steps(grid, radius, shape) * groups
