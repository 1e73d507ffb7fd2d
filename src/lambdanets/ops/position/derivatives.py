"""The position interaction as one differentiable function, of any order, made of an algorithm's forward and backward.

y = T(q, R, V) + q L, where L is the content lambda, if there is one: linear in each factor. With the gradient g of y,
<g, y> is linear in each of five, and its derivatives are such functions again: the gradient of the gradients in the
direction (a, B, C, D) is that of <g, T(a, R, V) + a L + T(q, B, V) + T(q, R, C) + q D>. So each derivative takes only
`follow_forward` and `follow_backward`, and products with content lambdas.

For eager code, as autograd Functions, which know forward mode and vmap; for torch.compile see `operators`.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from lambdanets.ops.position.execution import FactorGradients, follow_backward, follow_forward
from lambdanets.ops.position.plan import Plan, make_plan
from lambdanets.ops.position.problem import Factors, NeedsGrad
from lambdanets.ops.precision import without_autocast

# places among the factors
_QUERIES, _TABLE, _VALUES, _CONTENT = range(4)


def interact(factors: Factors, plan: Plan) -> Tensor:
    """The output (b, h, n, v) of factors whose table is cropped to the grid."""
    return _Interaction.apply(*factors, plan)


class _Interaction(torch.autograd.Function):
    @staticmethod
    def forward(*inputs: Any) -> Tensor:
        *factors, plan = inputs
        return follow_forward(Factors(*factors), plan)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.plan = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Any, ...]:
        needs_grad = NeedsGrad(*ctx.needs_input_grad[:4])
        return *_Gradients.apply(grad_output, *ctx.saved_tensors, ctx.plan, needs_grad), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        given = [(place, tangent) for place, tangent in enumerate(tangents[:4]) if tangent is not None]
        return reduce(torch.add, (_output_along(ctx.saved_tensors, *one, ctx.plan) for one in given))

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> tuple[Tensor, int]:
        *tensors, plan = inputs
        if in_dims[_TABLE] is None:  # one table: the axis becomes part of the batch
            places = (_QUERIES, _VALUES, _CONTENT)
            (queries, values, content), plan = _merge_into_batch(info, in_dims, tensors, places, plan)
            output = _Interaction.apply(queries, tensors[_TABLE], values, content, plan)
            return output.unflatten(0, (info.batch_size, -1)), 0
        each = [_Interaction.apply(*_at(tensors, in_dims, i), plan) for i in range(info.batch_size)]
        return torch.stack(each), 0


class _Gradients(torch.autograd.Function):
    @staticmethod
    def forward(grad_output: Tensor, *inputs: Any) -> FactorGradients:
        *factors, plan, needs_grad = inputs
        return follow_backward(grad_output, Factors(*factors), plan, needs_grad)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: FactorGradients) -> None:
        *tensors, ctx.plan, ctx.needs_grad = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *directions: Tensor | None) -> tuple[Any, ...]:
        return *_second(ctx.saved_tensors, directions, ctx.plan, ctx.needs_input_grad[:5]), None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor | None, ...]:
        grad_output, *factors = ctx.saved_tensors
        moved: list[list[Tensor]] = [[], [], [], []]
        if tangents[0] is not None:
            _append(moved, _Gradients.apply(tangents[0], *factors, ctx.plan, ctx.needs_grad))
        for place, tangent in enumerate(tangents[1:5]):
            if tangent is not None:
                _append(moved, _gradients_along(grad_output, factors, place, tangent, ctx.plan, ctx.needs_grad))
        return tuple(
            (reduce(torch.add, terms) if terms else torch.zeros_like(factor)) if needed else None
            for terms, factor, needed in zip(moved, factors, ctx.needs_grad, strict=True)
        )

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> tuple[Any, Any]:
        *tensors, plan, needs_grad = inputs
        if in_dims[1 + _TABLE] is None and not needs_grad.table:
            places = (0, 1 + _QUERIES, 1 + _VALUES, 1 + _CONTENT)
            (grad_output, queries, values, content), plan = _merge_into_batch(info, in_dims, tensors, places, plan)
            outputs = _Gradients.apply(grad_output, queries, tensors[1 + _TABLE], values, content, plan, needs_grad)
            split = tuple(None if x is None else x.unflatten(0, (info.batch_size, -1)) for x in outputs)
        else:
            each = [_Gradients.apply(*_at(tensors, in_dims, i), plan, needs_grad) for i in range(info.batch_size)]
            split = tuple(None if x[0] is None else torch.stack(x) for x in zip(*each, strict=True))
        return split, tuple(None if x is None else 0 for x in split)


def _output_along(factors: Sequence[Tensor], place: int, direction: Tensor, plan: Plan) -> Tensor:
    """The output with one factor replaced by a direction, of the terms that hold this factor."""
    queries, table, values, content = _with(factors, place, direction)
    if place == _CONTENT:
        return _product(queries, content)
    return _Interaction.apply(queries, table, values, content if place == _QUERIES else None, plan)


def _gradients_along(
    grad_output: Tensor,
    factors: Sequence[Tensor],
    place: int,
    direction: Tensor,
    plan: Plan,
    needs_grad: Sequence[bool],
) -> FactorGradients:
    """The needed gradients with one factor replaced by a direction, of the terms that hold this factor."""
    queries, table, values, content = _with(factors, place, direction)
    if place == _CONTENT:
        grad_queries = _product(grad_output, content.mT) if needs_grad[_QUERIES] else None
        return grad_queries, None, None, None
    by_queries = place == _QUERIES  # the only factor of both terms
    others = NeedsGrad(
        queries=needs_grad[_QUERIES] and not by_queries,
        table=needs_grad[_TABLE] and place != _TABLE,
        values=needs_grad[_VALUES] and place != _VALUES,
        content=needs_grad[_CONTENT] and by_queries,
    )
    if not any(others):
        return None, None, None, None
    return _Gradients.apply(grad_output, queries, table, values, content if by_queries else None, plan, others)


def _second(
    tensors: Sequence[Tensor], directions: Sequence[Tensor | None], plan: Plan, needed: Sequence[bool]
) -> list[Tensor | None]:
    """Gradients of <(dq, dR, dV, dL), directions> with respect to g, q, R, V and L."""
    grad_output, *factors = tensors
    terms: list[list[Tensor]] = [[], [], [], [], []]
    for place, direction in enumerate(directions):
        if direction is None:
            continue
        if needed[0]:
            terms[0].append(_output_along(factors, place, direction, plan))
        _append(terms[1:], _gradients_along(grad_output, factors, place, direction, plan, needed[1:]))
    return [reduce(torch.add, of_one) if of_one else None for of_one in terms]


def _product(rows: Tensor, matrices: Tensor) -> Tensor:
    """rows (b, h, n, i) times matrices (b, i, j) in the wider of their dtypes, whatever autocast says."""
    dtype = torch.promote_types(rows.dtype, matrices.dtype)
    with without_autocast(rows.device):
        return rows.to(dtype) @ matrices.to(dtype).unsqueeze(1)


def _append(terms: Sequence[list[Tensor]], new: Sequence[Tensor | None]) -> None:
    for of_one, term in zip(terms, new, strict=True):
        if term is not None:
            of_one.append(term)


def _with(tensors: Sequence[Tensor], place: int, replacement: Tensor) -> list[Tensor]:
    return [replacement if i == place else tensor for i, tensor in enumerate(tensors)]


def _at(tensors: Sequence[Tensor | None], dims: Sequence[int | None], i: int) -> list[Tensor | None]:
    return [x if x is None or dim is None else x.select(dim, i) for x, dim in zip(tensors, dims, strict=False)]


def _merge_into_batch(
    info: Any, dims: Sequence[int | None], tensors: Sequence[Tensor | None], places: Sequence[int], plan: Plan
) -> tuple[list[Tensor | None], Plan]:
    """The tensors at the places with the mapped axis merged into the batch, and the plan for that batch."""
    size = info.batch_size
    merged: list[Tensor | None] = []
    for place in places:
        x, dim = tensors[place], dims[place]
        if x is not None:
            x = (x.unsqueeze(0).expand(size, *x.shape) if dim is None else x.movedim(dim, 0)).flatten(0, 1)
        merged.append(x)
    problem = replace(plan.problem, batch=plan.problem.batch * size)
    return merged, make_plan(problem) if plan.automatic else replace(plan, problem=problem)
