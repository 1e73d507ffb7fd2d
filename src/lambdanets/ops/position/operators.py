"""The position interaction as two operators of torch.library, for torch.compile, which does not look into them.

The plan is made, the table cropped and a dilation split when the graph runs: one graph serves all sizes.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lambdanets.ops.geometry import crop_to_grid, join_phases, split_phases
from lambdanets.ops.position.fallback import follow_backward, follow_forward
from lambdanets.ops.position.plan import make_plan
from lambdanets.ops.position.problem import Factors, Problem, Wanted, problem_of
from lambdanets.ops.precision import output_dtype


def pose(
    queries: Tensor,
    table: Tensor,
    values: Tensor,
    content: Tensor | None,
    grid: Sequence[int],
    dilation: int,
    causal: bool,
) -> tuple[Factors, Problem]:
    """The factors, table cropped to the grid, of the undilated problem that those given come down to; the problem."""
    if dilation > 1:
        if content is not None:
            content = content.repeat_interleave(dilation ** len(grid), dim=0)
        queries = split_phases(queries.transpose(1, 2), grid, dilation).transpose(1, 2)
        values = split_phases(values, grid, dilation)
        grid = [-(-side // dilation) for side in grid]
    problem = problem_of(queries, table, values, grid, causal)
    return Factors(queries, crop_to_grid(table, grid), values, content), problem


def joined(x: Tensor, grid: Sequence[int], dilation: int) -> Tensor:
    """Outputs, or gradients of queries, (b d^D, h, n', ..) of the undilated problem as those of the whole one."""
    return x if dilation == 1 else join_phases(x.transpose(1, 2), grid, dilation).transpose(1, 2)


@torch.library.custom_op("lambdanets::position_interaction", mutates_args=())
def position_interaction_operator(
    queries: Tensor,
    table: Tensor,
    values: Tensor,
    content: Tensor | None,
    grid: Sequence[int],
    dilation: int,
    causal: bool,
    algorithm: str,
) -> Tensor:
    """queries (b, h, n, k), table (r_1..r_D, k, u), values (b, n, v, u), content (b, k, v) or None -> (b, h, n, v).

    Contiguous as (b, n, h, v).
    """
    factors, problem = pose(queries, table, values, content, grid, dilation, causal)
    output = joined(follow_forward(*factors, make_plan(problem, algorithm)), grid, dilation)
    return output.transpose(1, 2).contiguous().transpose(1, 2)


@position_interaction_operator.register_fake
def _(queries: Tensor, table: Tensor, values: Tensor, *options: Any) -> Tensor:
    b, h, n, _ = queries.shape
    return queries.new_empty(b, n, h, values.shape[2], dtype=output_dtype(queries.dtype)).transpose(1, 2)


@torch.library.custom_op("lambdanets::position_interaction_backward", mutates_args=())
def _backward_operator(
    gradient: Tensor,
    queries: Tensor,
    table: Tensor,
    values: Tensor,
    content: Tensor | None,
    grid: Sequence[int],
    dilation: int,
    causal: bool,
    algorithm: str,
    wanted: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of queries, table, values and content; an empty tensor for one that is not wanted."""
    factors, problem = pose(queries, table, values, content, grid, dilation, causal)
    if dilation > 1:
        gradient = split_phases(gradient.transpose(1, 2), grid, dilation).transpose(1, 2)
    plan = make_plan(problem, algorithm)
    grad_queries, grad_table, grad_values, grad_content = follow_backward(gradient, *factors, plan, Wanted(*wanted))
    if grad_table is not None:
        cut = [(side - kept) // 2 for side, kept in zip(table.shape[: len(grid)], grad_table.shape, strict=False)]
        grad_table = F.pad(grad_table, [0, 0, 0, 0, *(side for steps in reversed(cut) for side in (steps, steps))])
    if grad_values is not None and dilation > 1:
        grad_values = join_phases(grad_values, grid, dilation)
    if grad_content is not None and dilation > 1:
        grad_content = grad_content.unflatten(0, (-1, dilation ** len(grid))).sum(dim=1)
    return (
        queries.new_empty(0) if grad_queries is None else joined(grad_queries, grid, dilation).contiguous(),
        table.new_empty(0) if grad_table is None else grad_table.contiguous(),
        values.new_empty(0) if grad_values is None else grad_values.contiguous(),
        (gradient if content is None else content).new_empty(0) if grad_content is None else grad_content.contiguous(),
    )


@_backward_operator.register_fake
def _(gradient: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    *tensors, _, _, _, _, wanted = inputs
    return tuple(
        gradient.new_empty(0) if x is None else x.new_empty(x.shape if is_wanted else (0,))
        for x, is_wanted in zip(tensors, wanted, strict=True)
    )


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    queries, table, values, content, *ctx.options = inputs
    ctx.save_for_backward(queries, table, values, content)


def _differentiate(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    wanted = list(ctx.needs_input_grad[:4])
    results = _backward_operator(gradient, *ctx.saved_tensors, *ctx.options, wanted)
    return *(x if is_wanted else None for x, is_wanted in zip(results, wanted, strict=True)), *(None,) * 4


position_interaction_operator.register_autograd(_differentiate, setup_context=_remember)
