"""The position interaction on a grid, and its plan: argument checks and dtypes, then `position/position_term.py`."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lambdanets.ops.checks import check_flags, check_shape, check_sizes, check_tensors
from lambdanets.ops.position.choose import Plan, check_algorithm
from lambdanets.ops.position.dilation import undilate
from lambdanets.ops.position.position_term import compute_position_term, make_plan
from lambdanets.ops.precision import compute_and_result_dtype, without_autocast
from lambdanets.ops.tables import check_table


def position_interaction(
    queries: Tensor,
    table: Tensor,
    values: Tensor,
    grid: Sequence[int],
    *,
    content: Tensor | None = None,
    dilation: int = 1,
    causal: bool = False,
    algorithm: str = "auto",
) -> Tensor:
    """y[b,h,n,:] = sum_k q[b,h,n,k] sum_m R[m - n, k] v[b,m,:] over context positions m of the grid (Eqs. 1 and 2).

    Args:
        queries: (b, h, n, k) with n = prod(grid), in row-major order.
        table: relative embeddings (r_1..r_D, k[, u]) with odd sides, offset 0 at the center, and D = len(grid) = 1, 2
            or 3. A table can be used with any grid: offsets beyond the grid are cropped, offsets beyond the table are
            zero.
        values: (b, n, v[, u]). If values have the intra-depth axis u, the table has it too; it is summed over (C.4).
        content: (b, k, v), a lambda shared by all positions of an example, for example from `content_lambda`; adds
            sum_k q[b,h,n,k] content[b,k,:] to y.
        dilation: spacing of the offsets, in positions.
        causal: use only context positions up to and including the query in row-major order.
        algorithm: a name that `plan` prints, or "auto" to choose by it. Exported graphs have their own choice.

    Returns (b, h, n, v) in the dtype of the inputs, exact up to rounding. Sums are in float32 or wider. float16 inputs
    are computed in float32; under float16 autocast the result is float32. Accepts any strides. Twice differentiable;
    saves only its inputs for the backward pass.
    Cost: at most b n k u v min(n, prod(r)) multiply-adds; `plan` counts them. Raises ValueError naming the invalid
    argument.
    """
    tensors, grid, result_dtype = _prepare(queries, table, values, content, grid, dilation, causal, algorithm)
    with without_autocast(queries.device):
        return compute_position_term(*tensors, grid, dilation, causal, algorithm).to(result_dtype)


def plan(
    queries: Tensor,
    table: Tensor,
    values: Tensor,
    grid: Sequence[int],
    *,
    content: Tensor | None = None,
    dilation: int = 1,
    causal: bool = False,
    algorithm: str = "auto",
) -> Plan:
    """Return the plan of `position_interaction` for these arguments: costs and chosen algorithm.

    The cost of a content lambda is not included, because it is the same for all algorithms.
    Computes no output, so tensors may be on the meta device. Raises ValueError in the same cases as
    `position_interaction`.
    """
    tensors, grid, _ = _prepare(queries, table, values, content, grid, dilation, causal, algorithm)
    queries, table, values, _ = tensors
    if values.ndim == 3:
        table, values = table.unsqueeze(-1), values.unsqueeze(-1)
    if dilation > 1:
        queries, values, _, grid = undilate(queries, values, None, grid, dilation)
    return make_plan((queries, table, values, None), grid, causal, algorithm)


def _prepare(
    queries: Tensor,
    table: Tensor,
    values: Tensor,
    content: Tensor | None,
    grid: Sequence[int],
    dilation: int,
    causal: bool,
    algorithm: str,
) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor | None], tuple[int, ...], torch.dtype]:
    """Check the arguments; return the tensors in the compute dtype, the grid and the result dtype."""
    check_flags(causal=causal)
    check_sizes(dilation=dilation)
    if not isinstance(grid, Sequence) or isinstance(grid, str):
        raise ValueError(f"grid must be a sequence of 1, 2 or 3 integers, got {grid!r}")
    grid = tuple(grid)
    check_factors(queries, table, values, content, grid)
    check_algorithm(algorithm)
    dtype, result_dtype = compute_and_result_dtype(queries=queries, table=table, values=values, content=content)
    # float16 is cast to float32 where it is used, as is the table: the copies need not be saved for the backward pass.
    if not (dtype == torch.float32 and queries.dtype == values.dtype == torch.float16):
        queries, values = queries.to(dtype), values.to(dtype)
    content = None if content is None else content.to(dtype)
    return (queries, table, values, content), grid, result_dtype


def check_factors(
    queries: Tensor, table: Tensor, values: Tensor, content: Tensor | None, grid: tuple[int, ...]
) -> None:
    """Raise ValueError, with the expected and the actual shape, unless the shapes are consistent."""
    check_tensors({"content": content}, queries=queries, table=table, values=values)
    if not 1 <= len(grid) <= 3:
        raise ValueError(f"grid must have 1, 2 or 3 dimensions, got {grid}")
    check_sizes(**{f"grid[{axis}]": side for axis, side in enumerate(grid)})
    sizes: dict[str, int] = {}
    check_shape(sizes, "queries", queries, "b h n k")
    check_shape(sizes, "values", values, "b n v", "b n v u")
    owners = {"h": "queries", "n": "queries", "k": "queries", "v": "values", "u": "values"}
    check_sizes(**{f"{letter} of {owners[letter]}": size for letter, size in sizes.items() if letter in owners})
    if math.prod(grid) != sizes["n"]:
        raise ValueError(f"grid must have {sizes['n']} positions like queries, got {grid} with {math.prod(grid)}")
    check_table(table, len(grid), sizes, "k u" if "u" in sizes else "k")
    if content is not None:
        check_shape(sizes, "content", content, "b k v")
