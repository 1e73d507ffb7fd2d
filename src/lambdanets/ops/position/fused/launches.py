"""One launch of each fused kernel: tiles, copies of what has the wrong strides, the padded table, the result.

Shapes as in `fused`, without u: queries (b, h, n, k) with k of at most K, table (r_1..r_D, k), values (b, n, v),
gradient (b, h, n, v). Triton is imported at the first launch.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from lambdanets.ops.position.fused.tiles import (
    ENOUGH_PROGRAMS,
    MOST_VALUES,
    K,
    Tiles,
    chunks_of,
    power_of_two,
    table_step,
    tile_and_step,
    tiles_of,
)
from lambdanets.ops.position.problem import Problem


def forward(order: str, queries: Tensor, table: Tensor, values: Tensor, problem: Problem, dtype: torch.dtype) -> Tensor:
    """y (b, h, n, v) in a dtype; order: "lambda" or "query"."""
    from lambdanets.ops.position.fused import forward_kernels

    tiles = _tiles(f"forward_{order}_order", values, problem)
    grid, reach = _grid(problem), _reach(problem)
    shape = tile_and_step(grid, reach, tiles.positions, tiles.step)
    channels = values.shape[2]
    values = _rows(values)
    output = queries.new_empty(*queries.shape[:3], channels, dtype=dtype)
    constants = constants_of(f"forward_{order}_order", tiles, problem.heads)
    programs = _programs(problem, shape, constants["EXAMPLES"]) * -(-channels // tiles.values)
    kernel = forward_kernels.forward_lambda_order if order == "lambda" else forward_kernels.forward_query_order
    kernel[(programs,)](
        queries,
        _padded(table, shape),
        values,
        output,
        *queries.stride(),
        *values.stride()[:2],
        channels,
        queries.shape[3],
        problem.batch,
        problem.heads,
        *grid,
        *reach,
        *shape,
        **constants,
    )
    return output


def queries_gradient(gradient: Tensor, table: Tensor, values: Tensor, problem: Problem, dtype: torch.dtype) -> Tensor:
    """dq (b, h, n, k) in a dtype."""
    from lambdanets.ops.position.fused.gradient_kernels import queries_gradient as kernel

    tiles = _tiles("queries_gradient", values, problem)
    grid, reach = _grid(problem), _reach(problem)
    shape = tile_and_step(grid, reach, tiles.positions, tiles.step)
    gradient, values = _rows(gradient), _rows(values)
    output = values.new_empty(*gradient.shape[:3], table.shape[-1], dtype=dtype)
    constants = constants_of("queries_gradient", tiles, problem.heads)
    kernel[(_programs(problem, shape, constants["EXAMPLES"]),)](
        gradient,
        _padded(table, shape),
        values,
        output,
        *gradient.stride()[:3],
        *values.stride()[:2],
        values.shape[2],
        table.shape[-1],
        problem.batch,
        problem.heads,
        *grid,
        *reach,
        *shape,
        **constants,
    )
    return output


def values_gradient(gradient: Tensor, queries: Tensor, table: Tensor, problem: Problem, dtype: torch.dtype) -> Tensor:
    """dV (b, n, v) in a dtype."""
    from lambdanets.ops.position.fused.gradient_kernels import values_gradient as kernel

    tiles = _tiles("values_gradient", gradient, problem)
    grid, reach = _grid(problem), _reach(problem)
    gradient, queries = _rows(gradient), _rows(queries)
    channels = gradient.shape[3]
    constants = constants_of("values_gradient", tiles, problem.heads)
    shape = tile_and_step(grid, reach, tiles.positions, constants["STEP"])
    output = gradient.new_empty(problem.batch, problem.positions, channels, dtype=dtype)
    programs = _programs(problem, shape, constants["EXAMPLES"]) * -(-channels // tiles.values)
    kernel[(programs,)](
        gradient,
        queries,
        _padded(table, shape),
        output,
        *gradient.stride()[:3],
        *queries.stride()[:3],
        channels,
        queries.shape[3],
        problem.batch,
        problem.heads,
        *grid,
        *reach,
        *shape,
        **constants,
    )
    return output


def table_gradient(gradient: Tensor, queries: Tensor, values: Tensor, problem: Problem, dtype: torch.dtype) -> Tensor:
    """dR (r_1..r_D, k) in a dtype."""
    from lambdanets.ops.position.fused.table_kernels import sum_table_parts, table_parts

    tiles = _tiles("table_parts", values, problem)
    grid, reach = _grid(problem), _reach(problem)
    gradient, queries, values = _rows(gradient), _rows(queries), _rows(values)
    constants = constants_of("table_parts", tiles, problem.heads)
    step, row_groups, chunks, split_groups, splits, programs = _table_division(problem, tiles)
    parts = values.new_empty(programs, tiles.positions, tiles.step, K, dtype=torch.float32)
    table_parts[(programs,)](
        gradient,
        queries,
        values,
        parts,
        *gradient.stride()[:3],
        *queries.stride()[:3],
        *values.stride()[:2],
        values.shape[2],
        queries.shape[3],
        problem.batch,
        problem.heads,
        *grid,
        *reach,
        *step,
        row_groups,
        chunks,
        split_groups * constants["EXAMPLES"],
        **constants,
    )
    output = values.new_empty(*problem.scope, queries.shape[3], dtype=dtype)
    sum_table_parts[(output[..., 0].numel(),)](
        parts,
        output,
        queries.shape[3],
        grid[1],
        *reach,
        *step,
        row_groups,
        chunks,
        splits,
        TILE=tiles.positions,
        STEP=tiles.step,
        K=K,
        AT_ONCE=8,
        num_warps=4,
        enable_fp_fusion=True,
    )
    return output


def _table_division(problem: Problem, tiles: Tiles) -> tuple[tuple[int, int], int, int, int, int, int]:
    """A step's sides, row groups, chunks, groups of examples in a split, splits and programs of `table_parts`."""
    grid, reach = _grid(problem), _reach(problem)
    step = table_step(grid, reach, tiles.positions, tiles.step)
    row_groups = -(-(2 * reach[0] + 1) // step[0])
    chunks = chunks_of(grid, reach, tiles.positions, step[1])
    programs = row_groups * chunks * -(-grid[1] // tiles.positions)
    groups = max(1, -(-problem.batch // constants_of("table_parts", tiles, problem.heads)["EXAMPLES"]))
    # The batch is split until there are enough programs.
    split_groups = -(-groups // min(groups, -(-ENOUGH_PROGRAMS // programs)))
    splits = -(-groups // split_groups)
    return step, row_groups, chunks, split_groups, splits, splits * programs


def table_parts_bytes(problem: Problem, architecture: int) -> int:
    """Bytes of the parts that `table_gradient` sums, of one launch."""
    sizes = problem.batch, problem.heads, problem.positions, min(problem.value_depth, MOST_VALUES)
    tiles = tiles_of("table_parts", architecture, problem.dtype.itemsize, *sizes)
    return 4 * _table_division(problem, tiles)[-1] * tiles.positions * tiles.step * K


def _grid(problem: Problem) -> tuple[int, int]:
    """Rows and columns; a line is one row."""
    return (1, problem.grid[0]) if len(problem.grid) == 1 else (problem.grid[0], problem.grid[1])


def _reach(problem: Problem) -> tuple[int, int]:
    """How far the table reaches to either side, in rows and columns."""
    return (0, problem.scope[0] // 2) if len(problem.scope) == 1 else (problem.scope[0] // 2, problem.scope[1] // 2)


def architecture(device: torch.device) -> int:
    """Major compute capability; Triton's interpreter, on the CPU, stands for 9."""
    return torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else 9


def _tiles(kernel: str, rows: Tensor, problem: Problem) -> Tiles:
    """The tiles for values, or gradients of the output, of so many channels."""
    sizes = problem.batch, problem.heads, problem.positions, rows.shape[-1]
    return tiles_of(kernel, architecture(rows.device), rows.dtype.itemsize, *sizes)


def constants_of(kernel: str, tiles: Tiles, heads: int) -> dict[str, int]:
    """What a kernel is compiled for. Fusing a product and a sum is asked for, so that no default changes the bits."""
    padded = power_of_two(heads)
    constants = {
        "TILE": tiles.positions,
        "EXAMPLES": max(1, tiles.rows // padded),
        "HEADS": padded,
        "STEP": tiles.step,
        "K": K,
        "V": tiles.values,
        "num_warps": tiles.warps,
        "num_stages": tiles.stages,
        "enable_fp_fusion": True,
    }
    if kernel == "forward_lambda_order":
        constants |= {"EXAMPLES": tiles.rows // tiles.values, "HEADS": heads}
    if kernel == "values_gradient":
        # Its second product sums over the heads of a step's positions, of which a tensor core takes 16 at a time.
        constants["STEP"] = max(tiles.step, 16 // padded)
    return constants


def _programs(problem: Problem, shape: tuple[int, int, int, int], examples: int) -> int:
    """Tiles times groups of examples."""
    rows, columns = _grid(problem)
    return -(-rows // shape[0]) * -(-columns // shape[1]) * -(-problem.batch // examples)


def _rows(x: Tensor) -> Tensor:
    """x itself where its last axis is dense and all others start at multiples of 16 bytes, else a dense copy."""
    aligned = all(stride * x.dtype.itemsize % 16 == 0 for stride in x.stride()[:-1])
    return x if x.stride(-1) == 1 and aligned else x.contiguous()


def _padded(table: Tensor, shape: tuple[int, int, int, int]) -> Tensor:
    """The table (r_y, r_x, K) with zeros as far as the farthest query of a tile lies from its first, and beyond k."""
    table = table.unsqueeze(0) if table.ndim == 2 else table
    rows, columns = shape[0] - 1, shape[1] - 1
    return F.pad(table, (0, K - table.shape[-1], columns, columns, rows, rows)).contiguous()
