"""The position interaction in torch.library, for torch.compile, make_fx and FLOP counters.

The operator plans when the graph runs, so one graph works for all sizes.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from lambdanets.ops.position.position_term import compute, derive_by_operator, make_plan
from lambdanets.ops.precision import widen_float16, without_autocast


@torch.library.custom_op("lambdanets::position_interaction", mutates_args=())
def position_interaction_operator(
    grad_output: Tensor | None,
    queries: Tensor,
    table: Tensor,
    values: Tensor,
    content: Tensor | None,
    grid: Sequence[int],
    causal: bool,
    algorithm: str,
    needs: Sequence[bool],
) -> list[Tensor]:
    """Compute the needed derivatives of `position_term.derive`: output, gradients of queries, table, values, content.

    queries: (b, h, n, k). table: (r_1..r_D, k, u). values: (b, n, v, u). content: (b, k, v) or None. grad_output: that
    of the output (b, h, n, v), which is contiguous as (b, n, h, v); None without gradients, which are contiguous.
    """
    tensors = grad_output, queries, table, values, content
    if any(needs[1:]):
        shape = (*queries.shape[:3], values.shape[2])
        if grad_output is None or grad_output.shape != shape:
            raise ValueError(f"grad_output must be {shape}, got {None if grad_output is None else grad_output.shape}")
    plan = make_plan(tensors[1:], tuple(grid), causal, algorithm)
    with without_autocast(queries.device):
        output, *gradients = compute(tensors, plan, needs)
    outputs = [] if output is None else [output.transpose(1, 2).contiguous().transpose(1, 2)]
    return outputs + [x.contiguous() for x in gradients if x is not None]


@position_interaction_operator.register_fake
def _(_: Any, queries: Tensor, table: Tensor, values: Tensor, content: Any, *options: Any) -> list[Tensor]:
    (b, h, n, _), factors, needs = queries.shape, (queries, table, values, content), options[-1]
    output = queries.new_empty(b, n, h, values.shape[2], dtype=widen_float16(queries.dtype)).transpose(1, 2)
    gradients = [x.new_empty(x.shape) for x, needed in zip(factors, needs[1:], strict=True) if needed]
    return [output, *gradients] if needs[0] else gradients


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _, *factors, ctx.grid, ctx.causal, ctx.algorithm, ctx.needs = inputs
    ctx.save_for_backward(*factors)


def _backward(ctx: Any, grad_outputs: list[Tensor]) -> tuple[Any, ...]:
    if any(ctx.needs[1:]):
        raise RuntimeError("gradients in a graph must not be differentiated; double backward needs eager mode")
    tensors, options = (grad_outputs[0], *ctx.saved_tensors), (ctx.grid, ctx.causal, ctx.algorithm)
    return *derive_by_operator(tensors, options, [False, *ctx.needs_input_grad[1:5]]), *(None,) * 4


position_interaction_operator.register_autograd(_backward, setup_context=_setup_context)


@register_flop_formula(torch.ops.lambdanets.position_interaction)
def interaction_flops(
    _: Any, queries: Sequence[int], table: Any, values: Sequence[int], content: Any, grid: Any, *options: Any, **__: Any
) -> int:
    """Count 2 b n k v (u prod(min(r, S)) + h), of all lambdas and of the queries applied to them; gradients twice."""
    b, n, v, u = values
    pairs, needs = n * math.prod(map(min, table, grid)), options[-1]
    return 2 * b * queries[3] * v * (u * pairs + queries[1] * n) * (needs[0] + 2 * any(needs[1:]))
