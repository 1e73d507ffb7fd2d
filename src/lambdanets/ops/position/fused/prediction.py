"""Cost model of the fused kernels on a GPU: loads, instructions and multiply-adds of their tiles.

The time of a step is the maximum of the times for L2 loads, issued instructions and multiply-adds of all programs on an
SM. Because cache hints keep embeddings in L1, only a quarter of their loads count as L2 loads. In the gradient of the
table, values of the previous step stay in L1, and only 1.3 / rows of their loads count.

According to compiled code (`experiments/kernels.py`), the number of instructions of a warp per step is a constant, plus
2.5 per tensor core (MMA) instruction and 5 per 16-byte load; in float32, 1.3 per multiply-add. These numbers were not
measured on a GPU; `lambdanets calibrate` measures correction factors.
"""

import math
from dataclasses import dataclass

from lambdanets.ops.position.fused.launches import choose_table_grid, grid_2d, radius_2d
from lambdanets.ops.position.fused.tiles import (
    LAMBDA_ORDER,
    LAMBDA_ORDER_KERNELS,
    K,
    Tiles,
    choose_tile_shape,
    choose_tiles,
    count_steps,
    next_power_of_2,
)
from lambdanets.ops.position.gpus import GpuSpec
from lambdanets.ops.position.problem import Problem

_EFFICIENCY = 0.75  # fraction of the throughput of the bottleneck; barriers and loop epilogues take time, too
_BASE_INSTRUCTIONS = {
    "forward_query_order": 60,
    "grad_queries": 60,
    "grad_values": 105,
    "grad_table_partial": 75,
    LAMBDA_ORDER: 120,
    "grad_queries_lambda_order": 120,
}
_MIN_RESIDENT_WARPS = 8  # per SM; experiments/kernels.py checks it
_BARRIER_CYCLES = 150  # cycles per step that other warps of the program cannot hide


@dataclass(frozen=True)
class StepWork:
    """The work of a program in one step.

    loaded_elements: elements loaded from L2. mma_instructions: m16n8k16 tensor core instructions per warp.
    multiply_adds: in total.
    """

    loaded_elements: float
    mma_instructions: float
    multiply_adds: float


def step_work(kernel: str, tiles: Tiles, heads: int, itemsize: int, step_rows: int = 1) -> StepWork:
    """Return the work of one step of a kernel; step_rows: rows of values per step of `grad_table_partial`."""
    n, b, m, v, h, warps = tiles.positions, tiles.examples, tiles.step, tiles.values, heads, tiles.warps
    embeddings = n * m * K / 4
    if kernel in LAMBDA_ORDER_KERNELS:
        return StepWork(embeddings + b * v * m, _mma_instructions(1, b * v, n * K, m, warps), b * v * n * K * m)
    multiply_adds = b * h * n * m * (K + v)
    if kernel == "forward_query_order":
        mma_instructions = _mma_instructions(n, b * h, m, K, warps) + _mma_instructions(b, n * h, v, m, warps)
        return StepWork(embeddings + b * m * v, mma_instructions, multiply_adds)
    if kernel == "grad_queries":
        mma_instructions = _mma_instructions(b, n * h, m, v, warps) + _mma_instructions(n, b * h, K, m, warps)
        return StepWork(embeddings + b * m * v, mma_instructions, multiply_adds)
    if kernel == "grad_values":
        mma_instructions = _mma_instructions(m, n, b * h, K, warps) + _mma_instructions(b, n, v, m * h, warps)
        return StepWork(embeddings + b * h * m * (K + v), mma_instructions, multiply_adds)
    if itemsize == 2:
        return StepWork(
            b * h * n * (K + v) + b * m * v, _mma_instructions(1, n * K, m, b * v, warps), b * v * n * K * m
        )
    mma_instructions = _mma_instructions(b, n * h, m, v, warps) + _mma_instructions(n, m, K, b * h, warps)
    return StepWork(b * h * n * (K + v) + b * m * v * min(1.0, 1.3 / step_rows), mma_instructions, multiply_adds)


def _mma_instructions(batch: int, rows: int, columns: int, terms: int, warps: int) -> float:
    """Return the number of MMA instructions per warp; the matrices of a batch are divided among the warps."""
    instructions = math.ceil(rows / 16) * math.ceil(columns / 8) * math.ceil(terms / 16)
    return instructions / warps if batch == 1 else instructions * math.ceil(batch / warps)


def kernel_seconds(kernel: str, problem: Problem, capability: tuple[int, int], gpu: GpuSpec) -> float:
    """Predict the seconds of one launch; the problem must fit a single launch."""
    itemsize, h = problem.dtype.itemsize, next_power_of_2(problem.heads)
    sizes = problem.batch, problem.heads, problem.num_positions, problem.value_depth
    tiles = choose_tiles(kernel, capability, itemsize, *sizes)
    groups, blocks = -(-problem.batch // tiles.examples), -(-problem.value_depth // tiles.values)
    grid, radius = grid_2d(problem), radius_2d(problem)
    partial_sum_bytes = 0.0
    if kernel == "grad_table_partial":
        launch_grid = choose_table_grid(problem, tiles)
        programs, step_rows = launch_grid.programs, launch_grid.step[0]
        steps = launch_grid.rows * groups * blocks * launch_grid.chunks * -(-grid[1] // tiles.positions)
        partial_sum_bytes = 2 * 4 * programs * tiles.positions * tiles.step * K  # written and read again
    else:
        shape, step_rows = choose_tile_shape(grid, radius, tiles.positions, tiles.step), 1
        column_programs = 1 if kernel.startswith("grad_queries") else blocks
        programs = -(-grid[0] // shape[0]) * -(-grid[1] // shape[1]) * groups * column_programs
        steps = count_steps(grid, radius, shape) * groups * column_programs
    work = step_work(kernel, tiles, problem.heads if kernel in LAMBDA_ORDER_KERNELS else h, itemsize, step_rows)
    cycles = _step_cycles(kernel, work, tiles, itemsize, gpu)
    programs_per_sm = max(1, _MIN_RESIDENT_WARPS // tiles.warps)
    slots = gpu.num_sms * programs_per_sm
    # With few programs, the time of a step is the latency of its instructions.
    latency = 2.5 * _instructions(kernel, work, tiles, itemsize) + _BARRIER_CYCLES
    total_cycles = steps / programs * -(-programs // slots) * max(programs_per_sm * cycles, latency)
    seconds = total_cycles / gpu.clock / _EFFICIENCY
    if kernel in LAMBDA_ORDER_KERNELS:
        multiply_adds = problem.batch * problem.heads * problem.num_positions * K * problem.value_depth
        seconds += 2 * multiply_adds / gpu.float32_flops / _EFFICIENCY
    b, n, k, v = problem.batch, problem.num_positions, problem.query_depth, problem.value_depth
    memory_bytes = itemsize * b * n * (problem.heads * (k + v) + v) + partial_sum_bytes
    return max(seconds, memory_bytes / (0.8 * gpu.memory_bandwidth))


def _step_cycles(kernel: str, work: StepWork, tiles: Tiles, itemsize: int, gpu: GpuSpec) -> float:
    """Return the SM cycles of one step of a program, if other programs hide its latency."""
    load_cycles = itemsize * work.loaded_elements / (gpu.l2_bandwidth / gpu.clock / gpu.num_sms)
    issue_cycles = _instructions(kernel, work, tiles, itemsize) * tiles.warps / 4
    if itemsize > 2:
        return max(load_cycles, issue_cycles, 2 * work.multiply_adds / (gpu.float32_flops / gpu.clock / gpu.num_sms))
    fraction = (
        1.0 if kernel in LAMBDA_ORDER_KERNELS else gpu.mma_sync_fraction
    )  # 2-d products use the full-rate instructions
    rate = gpu.bfloat16_flops * fraction / gpu.clock / gpu.num_sms
    return max(load_cycles, issue_cycles, 2 * 16 * 8 * 16 * work.mma_instructions * tiles.warps / rate)


def _instructions(kernel: str, work: StepWork, tiles: Tiles, itemsize: int) -> float:
    """Return the number of instructions per warp in a step."""
    threads = 32 * tiles.warps
    loads = itemsize * work.loaded_elements / (16 * threads)
    if itemsize > 2:
        return _BASE_INSTRUCTIONS[kernel] + 1.3 * work.multiply_adds / threads + 5 * loads
    return (
        _BASE_INSTRUCTIONS[kernel] + (0 if kernel in LAMBDA_ORDER_KERNELS else 2.5 * work.mma_instructions) + 5 * loads
    )
