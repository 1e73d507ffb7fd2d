"""Launches the fused kernels: chooses tile sizes, copies unaligned operands, pads the table, allocates results.

Shapes are as in `fused`, without u: queries (b, h, n, k) with k <= K, table (r_1..r_D, k), values (b, n, v), content
(b, k, v) or None, grad_output (b, h, n, v). Results are contiguous as (b, n, h, v) and (b, n, h, k). Triton is
imported at the first launch.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lambdanets.ops.position.algorithm import Problem
from lambdanets.ops.position.fused.device import KernelDevice, kernel_device
from lambdanets.ops.position.fused.tiles import (
    PROGRAMS_TO_FILL_GPU,
    K,
    Tiles,
    choose_table_step,
    choose_tile_shape,
    choose_tiles,
    count_chunks,
    count_row_pairs,
    kernels_of_order,
    max_value_channels,
    next_power_of_2,
)

VECTOR_BYTES = 16  # size of one vectorized load


def forward(
    order: str,
    queries: Tensor,
    table: Tensor,
    values: Tensor,
    content: Tensor | None,
    problem: Problem,
    dtype: torch.dtype,
) -> Tensor:
    """Compute y (b, h, n, v) in the given dtype; order: "lambda" or "query"."""
    from lambdanets.ops.position.fused import forward_kernels

    tiles = _choose_tiles(f"forward_{order}_order", values, problem)
    shape = choose_tile_shape(grid_2d(problem), radius_2d(problem), tiles.positions, tiles.step)
    output = _empty_aligned(values, problem.batch, problem.num_positions, problem.heads, values.shape[2], dtype=dtype)
    output = output.transpose(1, 2)
    queries, values, vec_size = _align_rows(queries), _align_rows(values), _vector_size(values)
    constants = kernel_constants(f"forward_{order}_order", tiles, problem.heads, values.dtype)
    constants["CONTENT"] = content is not None
    content = _align_content(content, values)
    getattr(forward_kernels, f"forward_{order}_order")[
        (_count_programs(problem, shape, tiles) * -(-values.shape[2] // tiles.values),)
    ](
        queries,
        _pad_table(table, shape),
        values,
        content,
        output,
        *strides_in_vectors(queries, vec_size),
        *strides_in_vectors(values, vec_size),
        *strides_in_vectors(content, vec_size),
        *strides_in_vectors(output, vec_size),
        *_size_arguments(problem, values.shape[2], queries.shape[3], vec_size),
        *shape,
        **constants,
    )
    return output


def grad_queries(
    order: str,
    grad_output: Tensor,
    table: Tensor,
    values: Tensor,
    content: Tensor | None,
    problem: Problem,
    dtype: torch.dtype,
) -> Tensor:
    """Compute grad_queries (b, h, n, k) in the given dtype."""
    from lambdanets.ops.position.fused import gradient_kernels

    name = kernels_of_order(order)[1]
    tiles = _choose_tiles(name, values, problem)
    shape = choose_tile_shape(grid_2d(problem), radius_2d(problem), tiles.positions, tiles.step)
    output = _empty_aligned(values, problem.batch, problem.num_positions, problem.heads, table.shape[-1], dtype=dtype)
    output = output.transpose(1, 2)
    grad_output, values, vec_size = _align_rows(grad_output), _align_rows(values), _vector_size(values)
    constants = kernel_constants(name, tiles, problem.heads, values.dtype)
    constants["CONTENT"] = content is not None
    content = _align_content(content, values)
    getattr(gradient_kernels, name)[(_count_programs(problem, shape, tiles),)](
        grad_output,
        _pad_table(table, shape),
        values,
        content,
        output,
        *strides_in_vectors(grad_output, vec_size),
        *strides_in_vectors(values, vec_size),
        *strides_in_vectors(content, vec_size),
        *strides_in_vectors(output, vec_size),
        *_size_arguments(problem, values.shape[2], table.shape[-1], vec_size),
        *shape,
        **constants,
    )
    return output


def grad_values(grad_output: Tensor, queries: Tensor, table: Tensor, problem: Problem, dtype: torch.dtype) -> Tensor:
    """Compute grad_values (b, n, v) in the given dtype."""
    from lambdanets.ops.position.fused.gradient_kernels import grad_values as kernel

    tiles = _choose_tiles("grad_values", grad_output, problem)
    shape = choose_tile_shape(grid_2d(problem), radius_2d(problem), tiles.positions, tiles.step)
    channels = grad_output.shape[3]
    output = _empty_aligned(grad_output, problem.batch, problem.num_positions, channels, dtype=dtype)
    grad_output, queries, vec_size = _align_rows(grad_output), _align_rows(queries), _vector_size(grad_output)
    constants = kernel_constants("grad_values", tiles, problem.heads, grad_output.dtype)
    kernel[(_count_programs(problem, shape, tiles) * -(-channels // tiles.values),)](
        grad_output,
        queries,
        _pad_table(table, shape),
        output,
        *strides_in_vectors(grad_output, vec_size),
        *strides_in_vectors(queries, vec_size),
        *strides_in_vectors(output, vec_size),
        *_size_arguments(problem, channels, queries.shape[3], vec_size),
        *shape,
        **constants,
    )
    return output


def grad_table(grad_output: Tensor, queries: Tensor, values: Tensor, problem: Problem) -> Tensor:
    """Compute grad_table (r_1..r_D, k), in float32 because it is a sum over all examples and positions."""
    from lambdanets.ops.position.fused.table_kernels import grad_table_partial, reduce_grad_table

    tiles = _choose_tiles("grad_table_partial", values, problem)
    depth = queries.shape[3]
    grad_output, queries, values, vec_size = (
        _align_rows(grad_output),
        _align_rows(queries),
        _align_rows(values),
        _vector_size(values),
    )
    launch_grid = choose_table_grid(problem, tiles)
    partial = values.new_empty(launch_grid.programs, tiles.positions, tiles.step, K, dtype=torch.float32)
    grad_table_partial[(launch_grid.programs,)](
        grad_output,
        queries,
        values,
        partial,
        *strides_in_vectors(grad_output, vec_size),
        *strides_in_vectors(queries, vec_size),
        *strides_in_vectors(values, vec_size),
        *_size_arguments(problem, values.shape[2], depth, vec_size),
        *launch_grid.step,
        launch_grid.row_groups,
        launch_grid.chunks,
        launch_grid.split_groups * tiles.examples,
        **kernel_constants("grad_table_partial", tiles, problem.heads, values.dtype),
    )
    output = values.new_empty(*problem.scope, depth, dtype=torch.float32)
    reduce_grad_table[(output[..., 0].numel(),)](
        partial,
        output,
        depth,
        grid_2d(problem)[1],
        radius_2d(problem)[1],
        *launch_grid.step,
        launch_grid.row_groups,
        launch_grid.chunks,
        launch_grid.splits,
        TILE=tiles.positions,
        STEP=tiles.step,
        K=K,
        PARTIALS_PER_LOAD=8,
        num_warps=4,
        enable_fp_fusion=True,
    )
    return output


class TableGrid(NamedTuple):
    """Launch grid of `grad_table_partial`.

    step: row offsets and context columns per program. row_groups, chunks: number of steps that cover all row offsets,
    and all context columns. split_groups: groups of examples per split of the batch. splits: number of splits.
    programs: number of programs. rows: iterations over rows of queries per group of examples, summed over row groups.
    """

    step: tuple[int, int]
    row_groups: int
    chunks: int
    split_groups: int
    splits: int
    programs: int
    rows: int


def choose_table_grid(problem: Problem, tiles: Tiles) -> TableGrid:
    """Choose the launch grid of `grad_table_partial`.

    The batch is split only as far as the programs fill at most one wave on the GPU.
    """
    grid, radius = grid_2d(problem), radius_2d(problem)
    step = choose_table_step(grid, radius, tiles.positions, tiles.step)
    row_groups = -(-(2 * radius[0] + 1) // step[0])
    chunks = count_chunks(grid, radius, tiles.positions, step[1])
    programs = row_groups * chunks * -(-grid[1] // tiles.positions)
    groups = max(1, -(-problem.batch // tiles.examples))
    split_groups = -(-groups // min(groups, max(1, PROGRAMS_TO_FILL_GPU // programs)))
    splits = -(-groups // split_groups)
    rows = count_row_pairs(grid[0], radius[0], step[0])
    return TableGrid(step, row_groups, chunks, split_groups, splits, splits * programs, rows)


def grad_table_partial_bytes(problem: Problem, device: KernelDevice) -> int:
    """Return the size of the partial sums of one launch of `grad_table`."""
    itemsize = problem.dtype.itemsize
    sizes = problem.batch, problem.heads, min(problem.value_depth, max_value_channels(itemsize))
    tiles = choose_tiles("grad_table_partial", device.capability, itemsize, *sizes)
    return 4 * choose_table_grid(problem, tiles).programs * tiles.positions * tiles.step * K


def grid_2d(problem: Problem) -> tuple[int, int]:
    """Return rows and columns of the grid; a sequence has one row."""
    return (1, problem.grid[0]) if len(problem.grid) == 1 else (problem.grid[0], problem.grid[1])


def radius_2d(problem: Problem) -> tuple[int, int]:
    """Return the radius of the table, in rows and columns."""
    return (0, problem.scope[0] // 2) if len(problem.scope) == 1 else (problem.scope[0] // 2, problem.scope[1] // 2)


def _choose_tiles(kernel: str, rows: Tensor, problem: Problem) -> Tiles:
    """Choose tile sizes; rows: values or grad_output (.., channels)."""
    device = kernel_device(str(rows.device))
    assert device is not None
    return choose_tiles(kernel, device.capability, rows.dtype.itemsize, problem.batch, problem.heads, rows.shape[-1])


def kernel_constants(kernel: str, tiles: Tiles, heads: int, dtype: torch.dtype) -> dict[str, int]:
    """Return the compile-time constants of a kernel; FMA is explicit because Triton's default may change."""
    return {
        "TILE": tiles.positions,
        "EXAMPLES": tiles.examples,
        "HEADS": heads if tiles.lambda_order else next_power_of_2(heads),
        "STEP": tiles.step,
        "K": K,
        "V": tiles.values,
        "VEC": VECTOR_BYTES // dtype.itemsize,
        "num_warps": tiles.warps,
        "num_stages": tiles.stages,
        "enable_fp_fusion": True,
    } | ({"LAMBDA_ORDER": tiles.lambda_order} if kernel == "grad_table_partial" else {})


def _count_programs(problem: Problem, shape: tuple[int, int, int, int], tiles: Tiles) -> int:
    """Return the number of programs: tiles times groups of examples."""
    rows, columns = grid_2d(problem)
    return -(-rows // shape[0]) * -(-columns // shape[1]) * -(-problem.batch // tiles.examples)


def _vector_size(x: Tensor) -> int:
    """Return the number of elements of x per vectorized load."""
    return VECTOR_BYTES // x.dtype.itemsize


def strides_in_vectors(x: Tensor, vec_size: int) -> list[int]:
    """Return the strides of all axes except the last, in vectors of `vec_size` elements."""
    return [stride // vec_size for stride in x.stride()[:-1]]


def _align_rows(x: Tensor) -> Tensor:
    """Return x if its rows are contiguous, aligned and multiples of the vector size, or else a zero-padded copy."""
    vec_size = _vector_size(x)
    if x.shape[-1] % vec_size:
        return F.pad(x, (0, -x.shape[-1] % vec_size)).contiguous()
    aligned = all(stride % vec_size == 0 or size == 1 for stride, size in zip(x.stride()[:-1], x.shape, strict=False))
    if x.stride(-1) == 1 and aligned and x.data_ptr() % VECTOR_BYTES == 0:
        return x
    return x.clone(memory_format=torch.contiguous_format)


def _align_content(content: Tensor | None, values: Tensor) -> Tensor:
    """Align the rows of the content lambda (b, k, v), and pad k to the vector size, in which kernels load queries.

    Without content, return a view of the values: kernels need a pointer, which they do not read then.
    """
    if content is None:
        return values[:, 0, None]
    missing = -content.shape[1] % _vector_size(content)
    return _align_rows(F.pad(content, (0, 0, 0, missing)) if missing else content)


def _size_arguments(problem: Problem, value_depth: int, query_depth: int, vec_size: int) -> list[int]:
    """Return the size arguments of all kernels, with depths in vectors."""
    depths = [-(-value_depth // vec_size), -(-query_depth // vec_size)]
    return [*depths, problem.batch, problem.heads, *grid_2d(problem), *radius_2d(problem)]


def _empty_aligned(like: Tensor, *shape: int, dtype: torch.dtype) -> Tensor:
    """Return a new tensor of this shape whose rows are padded to whole vectors of `like`."""
    depth = shape[-1]
    return like.new_empty(*shape[:-1], depth + -depth % _vector_size(like), dtype=dtype)[..., :depth]


def _pad_table(table: Tensor, shape: tuple[int, int, int, int]) -> Tensor:
    """Zero-pad the table by the tile size minus 1 on each side, and from k to K; the result is (rows, columns, K)."""
    table = table.unsqueeze(0) if table.ndim == 2 else table
    rows, columns = shape[0] - 1, shape[1] - 1
    return F.pad(table, (0, K - table.shape[-1], columns, columns, rows, rows)).contiguous()
