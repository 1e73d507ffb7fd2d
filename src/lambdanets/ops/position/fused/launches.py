"""Launches of the fused kernels: tile sizes, aligned copies of operands where needed, padding of the table, results.

Shapes as in `fused`, without u: queries (b, h, n, k) with k of at most K, table (r_1..r_D, k), values (b, n, v),
content (b, k, v) or None, grad_output (b, h, n, v). Results are contiguous as (b, n, h, v) and (b, n, h, k). For
float16, `scales` holds two float32 factors, of the result and of the content term. Triton is imported at the first
launch.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lambdanets.ops.position.fused.device import KernelDevice, kernel_device
from lambdanets.ops.position.fused.tiles import (
    ENOUGH_PROGRAMS,
    K,
    Tiles,
    choose_table_step,
    choose_tile_shape,
    choose_tiles,
    count_chunks,
    count_row_pairs,
    max_value_channels,
    next_power_of_2,
)
from lambdanets.ops.position.problem import Problem

UNIT_BYTES = 16  # of one vectorized load


def forward(
    order: str,
    queries: Tensor,
    table: Tensor,
    values: Tensor,
    content: Tensor | None,
    problem: Problem,
    dtype: torch.dtype,
    scales: Tensor | None,
) -> Tensor:
    """y (b, h, n, v) in a dtype; order: "lambda" or "query"."""
    from lambdanets.ops.position.fused import forward_kernels

    tiles = _tiles(f"forward_{order}_order", values, problem)
    shape = choose_tile_shape(grid_2d(problem), reach_2d(problem), tiles.positions, tiles.step)
    output = _result(values, problem.batch, problem.positions, problem.heads, values.shape[2], dtype=dtype)
    output = output.transpose(1, 2)
    queries, values, unit = _rows(queries), _rows(values), _unit(values)
    has_content = content is not None
    content = values[:, 0, None] if content is None else _align_content(content)  # which no kernel then reads
    kernel = forward_kernels.forward_lambda_order if order == "lambda" else forward_kernels.forward_query_order
    constants = kernel_constants(f"forward_{order}_order", tiles, problem.heads, values.dtype)
    constants |= {"CONTENT": has_content, "SCALED": scales is not None}
    kernel[(_programs(problem, shape, tiles) * -(-values.shape[2] // tiles.values),)](
        queries,
        _pad_table(table, shape),
        values,
        content,
        output,
        values if scales is None else scales,
        *strides_in_units(queries, unit),
        *strides_in_units(values, unit),
        *strides_in_units(content, unit),
        *strides_in_units(output, unit),
        *_sizes(problem, values.shape[2], queries.shape[3], unit),
        *shape,
        **constants,
    )
    return output


def queries_gradient(
    grad_output: Tensor,
    table: Tensor,
    values: Tensor,
    content: Tensor | None,
    problem: Problem,
    dtype: torch.dtype,
    scales: Tensor | None,
) -> Tensor:
    """dq (b, h, n, k) in a dtype."""
    from lambdanets.ops.position.fused.gradient_kernels import queries_gradient as kernel

    tiles = _tiles("queries_gradient", values, problem)
    shape = choose_tile_shape(grid_2d(problem), reach_2d(problem), tiles.positions, tiles.step)
    output = _result(values, problem.batch, problem.positions, problem.heads, table.shape[-1], dtype=dtype)
    output = output.transpose(1, 2)
    grad_output, values, unit = _rows(grad_output), _rows(values), _unit(values)
    has_content = content is not None
    content = values[:, 0, None] if content is None else _align_content(content)  # which no kernel then reads
    constants = kernel_constants("queries_gradient", tiles, problem.heads, values.dtype)
    constants |= {"CONTENT": has_content, "SCALED": scales is not None}
    kernel[(_programs(problem, shape, tiles),)](
        grad_output,
        _pad_table(table, shape),
        values,
        content,
        output,
        values if scales is None else scales,
        *strides_in_units(grad_output, unit),
        *strides_in_units(values, unit),
        *strides_in_units(content, unit),
        *strides_in_units(output, unit),
        *_sizes(problem, values.shape[2], table.shape[-1], unit),
        *shape,
        **constants,
    )
    return output


def values_gradient(
    grad_output: Tensor, queries: Tensor, table: Tensor, problem: Problem, dtype: torch.dtype, scales: Tensor | None
) -> Tensor:
    """dV (b, n, v) in a dtype."""
    from lambdanets.ops.position.fused.gradient_kernels import values_gradient as kernel

    tiles = _tiles("values_gradient", grad_output, problem)
    shape = choose_tile_shape(grid_2d(problem), reach_2d(problem), tiles.positions, tiles.step)
    channels = grad_output.shape[3]
    output = _result(grad_output, problem.batch, problem.positions, channels, dtype=dtype)
    grad_output, queries, unit = _rows(grad_output), _rows(queries), _unit(grad_output)
    constants = kernel_constants("values_gradient", tiles, problem.heads, grad_output.dtype)
    constants |= {"SCALED": scales is not None}
    kernel[(_programs(problem, shape, tiles) * -(-channels // tiles.values),)](
        grad_output,
        queries,
        _pad_table(table, shape),
        output,
        grad_output if scales is None else scales,
        *strides_in_units(grad_output, unit),
        *strides_in_units(queries, unit),
        *strides_in_units(output, unit),
        *_sizes(problem, channels, queries.shape[3], unit),
        *shape,
        **constants,
    )
    return output


def table_gradient(
    grad_output: Tensor, queries: Tensor, values: Tensor, problem: Problem, scales: Tensor | None
) -> Tensor:
    """dR (r_1..r_D, k) in float32, as it sums over all examples and positions; tables are float32 under autocast."""
    from lambdanets.ops.position.fused.table_kernels import sum_table_parts, table_parts

    tiles = _tiles("table_parts", values, problem)
    depth = queries.shape[3]
    grad_output, queries, values, unit = _rows(grad_output), _rows(queries), _rows(values), _unit(values)
    division = table_division(problem, tiles)
    parts = values.new_empty(division.programs, tiles.positions, tiles.step, K, dtype=torch.float32)
    table_parts[(division.programs,)](
        grad_output,
        queries,
        values,
        parts,
        *strides_in_units(grad_output, unit),
        *strides_in_units(queries, unit),
        *strides_in_units(values, unit),
        *_sizes(problem, values.shape[2], depth, unit),
        *division.step,
        division.row_groups,
        division.chunks,
        division.split_groups * tiles.examples,
        **kernel_constants("table_parts", tiles, problem.heads, values.dtype),
    )
    output = values.new_empty(*problem.scope, depth, dtype=torch.float32)
    sum_table_parts[(output[..., 0].numel(),)](
        parts,
        output,
        parts if scales is None else scales,
        depth,
        grid_2d(problem)[1],
        *reach_2d(problem),
        *division.step,
        division.row_groups,
        division.chunks,
        division.splits,
        TILE=tiles.positions,
        STEP=tiles.step,
        K=K,
        PARTS_PER_LOAD=8,
        SCALED=scales is not None,
        num_warps=4,
        enable_fp_fusion=True,
    )
    return output


class TableDivision(NamedTuple):
    """How `table_parts` divides a problem among programs.

    step: row offsets and context columns per program. row_groups, chunks: the numbers of steps to cover them.
    split_groups: groups of examples in a split of the batch. rows: iterations over rows of queries per group of
    examples, summed over all row groups.
    """

    step: tuple[int, int]
    row_groups: int
    chunks: int
    split_groups: int
    splits: int
    programs: int
    rows: int


def table_division(problem: Problem, tiles: Tiles) -> TableDivision:
    """The division of a problem; the batch is split as long as all programs run on the device at once."""
    grid, reach = grid_2d(problem), reach_2d(problem)
    step = choose_table_step(grid, reach, tiles.positions, tiles.step)
    row_groups = -(-(2 * reach[0] + 1) // step[0])
    chunks = count_chunks(grid, reach, tiles.positions, step[1])
    programs = row_groups * chunks * -(-grid[1] // tiles.positions)
    groups = max(1, -(-problem.batch // tiles.examples))
    split_groups = -(-groups // min(groups, max(1, ENOUGH_PROGRAMS // programs)))
    splits = -(-groups // split_groups)
    rows = count_row_pairs(grid[0], reach[0], step[0])
    return TableDivision(step, row_groups, chunks, split_groups, splits, splits * programs, rows)


def table_parts_bytes(problem: Problem, device: KernelDevice) -> int:
    """Bytes of the partial sums of one launch of `table_gradient`."""
    itemsize = problem.dtype.itemsize
    sizes = problem.batch, problem.heads, problem.positions, min(problem.value_depth, max_value_channels(itemsize))
    tiles = choose_tiles("table_parts", device.capability, itemsize, *sizes)
    return 4 * table_division(problem, tiles).programs * tiles.positions * tiles.step * K


def grid_2d(problem: Problem) -> tuple[int, int]:
    """Rows and columns; a sequence is one row."""
    return (1, problem.grid[0]) if len(problem.grid) == 1 else (problem.grid[0], problem.grid[1])


def reach_2d(problem: Problem) -> tuple[int, int]:
    """Reach of the table to either side, in rows and columns."""
    return (0, problem.scope[0] // 2) if len(problem.scope) == 1 else (problem.scope[0] // 2, problem.scope[1] // 2)


def _tiles(kernel: str, rows: Tensor, problem: Problem) -> Tiles:
    """Tile sizes for values, or grad_output, (.., channels)."""
    device = kernel_device(str(rows.device))
    assert device is not None
    sizes = problem.batch, problem.heads, problem.positions, rows.shape[-1]
    return choose_tiles(kernel, device.capability, rows.dtype.itemsize, *sizes)


def kernel_constants(kernel: str, tiles: Tiles, heads: int, dtype: torch.dtype) -> dict[str, int]:
    """Compile-time constants of a kernel. FMA is explicit, so that a changed default cannot change results."""
    return {
        "TILE": tiles.positions,
        "EXAMPLES": tiles.examples,
        "HEADS": heads if kernel == "forward_lambda_order" else next_power_of_2(heads),
        "STEP": tiles.step,
        "K": K,
        "V": tiles.values,
        "UNIT": UNIT_BYTES // dtype.itemsize,
        "num_warps": tiles.warps,
        "num_stages": tiles.stages,
        "enable_fp_fusion": True,
    }


def _programs(problem: Problem, shape: tuple[int, int, int, int], tiles: Tiles) -> int:
    """Number of programs: tiles times groups of examples."""
    rows, columns = grid_2d(problem)
    return -(-rows // shape[0]) * -(-columns // shape[1]) * -(-problem.batch // tiles.examples)


def _unit(x: Tensor) -> int:
    """Elements of the dtype of x in a unit of 16 bytes."""
    return UNIT_BYTES // x.dtype.itemsize


def strides_in_units(x: Tensor, unit: int) -> list[int]:
    """Strides of all axes but the last, in units."""
    return [stride // unit for stride in x.stride()[:-1]]


def _rows(x: Tensor) -> Tensor:
    """x if its last axis is dense and a multiple of a unit and all rows are aligned, else a zero-padded copy."""
    unit = _unit(x)
    if x.shape[-1] % unit:
        return F.pad(x, (0, -x.shape[-1] % unit)).contiguous()
    aligned = all(stride % unit == 0 or size == 1 for stride, size in zip(x.stride()[:-1], x.shape, strict=False))
    if x.stride(-1) == 1 and aligned and x.data_ptr() % UNIT_BYTES == 0:
        return x
    return x.clone(memory_format=torch.contiguous_format)


def _align_content(content: Tensor) -> Tensor:
    """The content lambda (b, k, v) as `_rows`, with k padded to units too, because kernels load queries in units."""
    missing = -content.shape[1] % _unit(content)
    return _rows(F.pad(content, (0, 0, 0, missing)) if missing else content)


def _sizes(problem: Problem, value_depth: int, query_depth: int, unit: int) -> list[int]:
    """The sizes that all kernels take, depths in units."""
    depths = [-(-value_depth // unit), -(-query_depth // unit)]
    return [*depths, problem.batch, problem.heads, *grid_2d(problem), *reach_2d(problem)]


def _result(like: Tensor, *shape: int, dtype: torch.dtype) -> Tensor:
    """A new tensor of this shape with rows padded to units of the dtype of `like`."""
    depth = shape[-1]
    return like.new_empty(*shape[:-1], depth + -depth % _unit(like), dtype=dtype)[..., :depth]


def _pad_table(table: Tensor, shape: tuple[int, int, int, int]) -> Tensor:
    """The table (r_y, r_x, K), zero-padded by the size of a tile minus 1 on each side, and from k to K."""
    table = table.unsqueeze(0) if table.ndim == 2 else table
    rows, columns = shape[0] - 1, shape[1] - 1
    return F.pad(table, (0, K - table.shape[-1], columns, columns, rows, rows)).contiguous()
