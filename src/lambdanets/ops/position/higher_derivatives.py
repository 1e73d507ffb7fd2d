"""Second derivatives, forward-mode AD and vmap of the position term. Imported when they are used.

y = T(q, R, V) + q L is linear in each of queries q, table R, values V and the optional content lambda L. With g the
gradient of y, <g, y> is linear in all five. Its directional derivative along (a, B, C, D) has the same form,
<g, T(a, R, V) + a L + T(q, B, V) + T(q, R, C) + q D>. Therefore derivatives of any order need only `apply_plan`,
`position_gradients` and products with content lambdas. README.md in this folder has a table of the terms.
"""

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from lambdanets.ops.position import autograd
from lambdanets.ops.position.algorithm import NeedsGrad
from lambdanets.ops.position.autograd import FactorGradients, apply_plan, position_gradients
from lambdanets.ops.position.choose import Plan
from lambdanets.ops.precision import without_autocast

_QUERIES, _TABLE, _VALUES, _CONTENT = range(4)  # indices of factors


class TransformableInteraction(autograd.Interaction):
    """`apply_plan` under the transforms of torch.func."""

    @staticmethod
    def forward(*inputs: Any) -> Tensor:
        return autograd.run_forward(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.plan = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> tuple[Tensor, int]:
        *tensors, plan = inputs
        examples = _examples(info, in_dims, tensors)
        return torch.stack([apply_plan(q, r, v, c, plan) for q, r, v, c in examples]), 0


class TransformableGradients(autograd.Gradients):
    """`position_gradients` under the transforms of torch.func."""

    @staticmethod
    def forward(*inputs: Any) -> FactorGradients:
        return autograd.run_backward(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: FactorGradients) -> None:
        *tensors, ctx.plan, ctx.needs = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        ctx.set_materialize_grads(False)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> tuple[Any, Any]:
        *tensors, plan, needs = inputs
        results = [position_gradients(g, x, plan, needs) for g, *x in _examples(info, in_dims, tensors)]
        stacked = tuple(None if x[0] is None else torch.stack(x) for x in zip(*results, strict=True))
        return stacked, tuple(None if x is None else 0 for x in stacked)


def output_jvp(factors: Sequence[Tensor], tangents: Sequence[Tensor | None], plan: Plan) -> Tensor:
    """Return the Jacobian-vector product of the output with the tangents of the factors."""
    directions = [(index, tangent) for index, tangent in enumerate(tangents) if tangent is not None]
    return reduce(torch.add, (_output_along(factors, *pair, plan) for pair in directions))


def gradients_jvp(
    tensors: Sequence[Tensor], tangents: Sequence[Tensor | None], plan: Plan, needs: NeedsGrad
) -> tuple[Tensor | None, ...]:
    """Return the Jacobian-vector products of the needed gradients with the tangents of g, q, R, V and L."""
    grad_output, *factors = tensors
    terms: list[list[Tensor]] = [[], [], [], []]
    if tangents[0] is not None:
        with without_autocast(grad_output.device):
            _append_terms(terms, position_gradients(tangents[0], factors, plan, needs))
    for index, tangent in enumerate(tangents[1:]):
        if tangent is not None:
            _append_terms(terms, _gradients_along(grad_output, factors, index, tangent, plan, needs))
    return tuple(
        (reduce(torch.add, summands) if summands else torch.zeros_like(factor)) if needed else None
        for summands, factor, needed in zip(terms, factors, needs, strict=True)
    )


def double_backward(
    tensors: Sequence[Tensor], directions: Sequence[Tensor | None], plan: Plan, needs_grad: Sequence[bool]
) -> list[Tensor | None]:
    """Return gradients of <(dq, dR, dV, dL), directions> with respect to g, q, R, V and L."""
    grad_output, *factors = tensors
    terms: list[list[Tensor]] = [[], [], [], [], []]
    for index, direction in enumerate(directions):
        if direction is None:
            continue
        if needs_grad[0]:
            terms[0].append(_output_along(factors, index, direction, plan))
        _append_terms(terms[1:], _gradients_along(grad_output, factors, index, direction, plan, needs_grad[1:]))
    return [reduce(torch.add, summands) if summands else None for summands in terms]


def _output_along(factors: Sequence[Tensor], index: int, direction: Tensor, plan: Plan) -> Tensor:
    """Return the Jacobian-vector product of the output with `direction`, a tangent of the factor with this index."""
    queries, table, values, content = _replace(factors, index, direction)
    if index == _CONTENT:
        return _product(queries, content)
    with without_autocast(queries.device):
        return apply_plan(queries, table, values, content if index == _QUERIES else None, plan)


def _gradients_along(
    grad_output: Tensor,
    factors: Sequence[Tensor],
    index: int,
    direction: Tensor,
    plan: Plan,
    needs_grad: Sequence[bool],
) -> FactorGradients:
    """Return the Jacobian-vector products of the needed gradients with `direction`, a tangent of this factor."""
    queries, table, values, content = _replace(factors, index, direction)
    if index == _CONTENT:
        grad_queries = _product(grad_output, content.mT) if needs_grad[_QUERIES] else None
        return grad_queries, None, None, None
    is_queries = index == _QUERIES  # queries are the only factor of both terms
    needed = NeedsGrad(
        queries=needs_grad[_QUERIES] and not is_queries,
        table=needs_grad[_TABLE] and index != _TABLE,
        values=needs_grad[_VALUES] and index != _VALUES,
        content=needs_grad[_CONTENT] and is_queries,
    )
    if not any(needed):
        return None, None, None, None
    return position_gradients(grad_output, (queries, table, values, content if is_queries else None), plan, needed)


def _product(rows: Tensor, matrices: Tensor) -> Tensor:
    """Multiply rows (b, h, n, i) by matrices (b, i, j) in the dtype of the content lambda, regardless of autocast."""
    with without_autocast(rows.device):
        return rows.to(matrices.dtype) @ matrices.unsqueeze(1)


def _append_terms(terms: Sequence[list[Tensor]], gradients: Sequence[Tensor | None]) -> None:
    for summands, gradient in zip(terms, gradients, strict=True):
        if gradient is not None:
            summands.append(gradient)


def _replace(tensors: Sequence[Tensor], index: int, replacement: Tensor) -> list[Tensor]:
    return [replacement if i == index else tensor for i, tensor in enumerate(tensors)]


def _examples(info: Any, dims: Sequence[int | None], tensors: Sequence[Tensor | None]) -> Iterator[list[Any]]:
    """The tensors of each example of vmap."""
    for i in range(info.batch_size):
        yield [x if x is None or dim is None else x.select(dim, i) for x, dim in zip(tensors, dims, strict=False)]
