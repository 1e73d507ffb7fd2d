"""The position interaction as two custom operators (torch.library), for torch.compile, make_fx and FLOP counters.

The operators plan when the graph runs, so one graph works for all sizes.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from lambdanets.ops.position.algorithm import NeedsGrad
from lambdanets.ops.position.position_term import make_plan, run_backward, run_forward
from lambdanets.ops.precision import widen_float16


@torch.library.custom_op("lambdanets::position_interaction", mutates_args=())
def position_interaction_operator(
    queries: Tensor,
    table: Tensor,
    values: Tensor,
    content: Tensor | None,
    grid: Sequence[int],
    causal: bool,
    algorithm: str,
) -> Tensor:
    """Compute the output (b, h, n, v), contiguous as (b, n, h, v).

    queries: (b, h, n, k). table: (r_1..r_D, k, u). values: (b, n, v, u). content: (b, k, v) or None.
    """
    factors = queries, table, values, content
    output = run_forward(factors, make_plan(factors, tuple(grid), causal, algorithm))
    return output.transpose(1, 2).contiguous().transpose(1, 2)


@position_interaction_operator.register_fake
def _(queries: Tensor, table: Tensor, values: Tensor, *options: Any) -> Tensor:
    b, h, n, _ = queries.shape
    return queries.new_empty(b, n, h, values.shape[2], dtype=widen_float16(queries.dtype)).transpose(1, 2)


@torch.library.custom_op("lambdanets::position_interaction_backward", mutates_args=())
def backward_operator(
    grad_output: Tensor,
    queries: Tensor,
    table: Tensor,
    values: Tensor,
    content: Tensor | None,
    grid: Sequence[int],
    causal: bool,
    algorithm: str,
    needs_grad: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute gradients of queries, table, values and content; those that are not needed are empty tensors."""
    factors = queries, table, values, content
    plan = make_plan(factors, tuple(grid), causal, algorithm)
    gradients = run_backward(grad_output, factors, plan, NeedsGrad(*needs_grad))
    pairs = zip(gradients, (queries, table, values, grad_output if content is None else content), strict=True)
    q, r, v, c = (x.new_empty(0) if grad is None else grad.contiguous() for grad, x in pairs)
    return q, r, v, c


@backward_operator.register_fake
def _(grad_output: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    *tensors, _, _, _, needs_grad = inputs
    return tuple(
        grad_output.new_empty(0) if x is None else x.new_empty(x.shape if needed else (0,))
        for x, needed in zip(tensors, needs_grad, strict=True)
    )


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    queries, table, values, content, *ctx.options = inputs
    ctx.save_for_backward(queries, table, values, content)


def _backward(ctx: Any, grad_output: Tensor) -> tuple[Any, ...]:
    needs_grad = list(ctx.needs_input_grad[:4])
    gradients = backward_operator(grad_output, *ctx.saved_tensors, *ctx.options, needs_grad)
    return *(x if needed else None for x, needed in zip(gradients, needs_grad, strict=True)), *(None,) * 3


position_interaction_operator.register_autograd(_backward, setup_context=_setup_context)


@register_flop_formula(torch.ops.lambdanets.position_interaction)
def interaction_flops(
    queries: Sequence[int], table: Any, values: Sequence[int], content: Any, grid: Any, *_: Any, **__: Any
) -> int:
    """Count 2 b n k v (u prod(min(r, S)) + h): of all lambdas and of the queries applied to them."""
    b, n, v, u = values
    pairs = n * math.prod(map(min, table, grid))
    return 2 * b * queries[3] * v * (u * pairs + queries[1] * n)


@register_flop_formula(torch.ops.lambdanets.position_interaction_backward)
def _backward_flops(grad_output: Any, *inputs: Any, **_: Any) -> int:
    return 2 * interaction_flops(*inputs)
