"""The position interaction as one differentiable function, of any order, made of an algorithm's forward and backward.

y = T(q, R, V) is linear in each factor. With the gradient g of y, L = <g, T(q, R, V)> is linear in each of four, and
its derivatives are such functions again: the gradient of the gradients in the direction (a, B, C) is that of
<g, T(a, R, V) + T(q, B, V) + T(q, R, C)>. So each derivative takes only `run_forward` and `run_backward`.

For eager code, as autograd Functions, which know forward mode and vmap; for torch.compile see `operators`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lambdanets.ops.position.execution import run_backward, run_forward
from lambdanets.ops.position.plan import Plan
from lambdanets.ops.position.problem import Wanted

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


def interact(queries: Tensor, table: Tensor, values: Tensor, plan: Plan) -> Tensor:
    """queries (b, h, n, k), table (r_1..r_D, k, u) cropped to the grid, values (b, n, v, u) -> (b, h, n, v)."""
    return _Interaction.apply(queries, table, values, plan)


class _Interaction(torch.autograd.Function):
    @staticmethod
    def forward(queries: Tensor, table: Tensor, values: Tensor, plan: Plan) -> Tensor:
        return run_forward(queries, table, values, plan.problem, plan.chosen)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.plan = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        wanted = Wanted(*ctx.needs_input_grad[:3])
        return *_Gradients.apply(gradient, *ctx.saved_tensors, ctx.plan, wanted), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        terms = [
            _Interaction.apply(*_with(ctx.saved_tensors, i, tangent), ctx.plan)
            for i, tangent in enumerate(tangents[:3])
            if tangent is not None
        ]
        return _sum(terms)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> tuple[Tensor, int]:
        *tensors, plan = inputs
        if in_dims[1] is None:  # one table: the axis joins the batch
            (queries, values), plan = _joined_batch(info, (in_dims[0], in_dims[2]), (tensors[0], tensors[2]), plan)
            output = _Interaction.apply(queries, tensors[1], values, plan)
            return output.unflatten(0, (info.batch_size, -1)), 0
        each = [_Interaction.apply(*_at(tensors, in_dims, i), plan) for i in range(info.batch_size)]
        return torch.stack(each), 0


class _Gradients(torch.autograd.Function):
    @staticmethod
    def forward(
        gradient: Tensor, queries: Tensor, table: Tensor, values: Tensor, plan: Plan, wanted: Wanted
    ) -> Gradients:
        return run_backward(gradient, queries, table, values, plan.problem, plan.backward, wanted)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Gradients) -> None:
        *tensors, ctx.plan, ctx.wanted = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *directions: Tensor | None) -> tuple[Any, ...]:
        needed = ctx.needs_input_grad[:4]
        return *_second(ctx.saved_tensors, directions, ctx.plan, needed), None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Gradients:
        moved = [
            _Gradients.apply(*_with(ctx.saved_tensors, i, tangent), ctx.plan, ctx.wanted)
            for i, tangent in enumerate(tangents[:4])
            if tangent is not None
        ]
        # of each gradient's terms, the one with its own factor moved does not count: it does not hold that factor
        factors = [i for i, tangent in enumerate(tangents[:4]) if tangent is not None]

        def moved_gradient(of: int) -> Tensor | None:
            if not ctx.wanted[of - 1]:
                return None
            terms = [parts[of - 1] for i, parts in zip(factors, moved, strict=True) if i != of]
            return _sum(terms) if terms else torch.zeros_like(ctx.saved_tensors[of])

        return moved_gradient(1), moved_gradient(2), moved_gradient(3)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> tuple[Any, Any]:
        *tensors, plan, wanted = inputs
        if in_dims[2] is None and not wanted.table:
            dims = (in_dims[0], in_dims[1], in_dims[3])
            (gradient, queries, values), plan = _joined_batch(info, dims, (tensors[0], tensors[1], tensors[3]), plan)
            outputs = _Gradients.apply(gradient, queries, tensors[2], values, plan, wanted)
            split = tuple(None if x is None else x.unflatten(0, (info.batch_size, -1)) for x in outputs)
        else:
            each = [_Gradients.apply(*_at(tensors, in_dims, i), plan, wanted) for i in range(info.batch_size)]
            split = tuple(None if x[0] is None else torch.stack(x) for x in zip(*each, strict=True))
        return split, tuple(None if x is None else 0 for x in split)


def _second(
    tensors: Sequence[Tensor], directions: Sequence[Tensor | None], plan: Plan, needed: Sequence[bool]
) -> list[Any]:
    """Gradients of <(dq, dR, dV), directions> with respect to g, q, R and V."""
    results: list[Tensor | None] = [None] * 4
    for i, direction in enumerate(directions, 1):
        if direction is None:
            continue
        moved = _with(tensors, i, direction)
        if needed[0]:
            term = _Interaction.apply(*moved[1:], plan)
            results[0] = term if results[0] is None else results[0] + term
        wanted = Wanted(*(needed[j] and j != i for j in (1, 2, 3)))
        if any(wanted):
            for j, term in enumerate(_Gradients.apply(*moved, plan, wanted), 1):
                if term is not None:
                    results[j] = term if results[j] is None else results[j] + term
    return results


def _with(tensors: Sequence[Tensor], place: int, replacement: Tensor) -> list[Tensor]:
    return [replacement if i == place else tensor for i, tensor in enumerate(tensors)]


def _sum(terms: Sequence[Tensor]) -> Tensor:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _at(tensors: Sequence[Tensor], dims: Sequence[int | None], i: int) -> list[Tensor]:
    return [x if dim is None else x.select(dim, i) for x, dim in zip(tensors, dims, strict=False)]


def _joined_batch(
    info: Any, dims: Sequence[int | None], tensors: Sequence[Tensor], plan: Plan
) -> tuple[list[Tensor], Plan]:
    """Tensors with the mapped axis joined to their batch, and the plan for so many examples."""
    size = info.batch_size
    moved = [
        x.unsqueeze(0).expand(size, *x.shape) if dim is None else x.movedim(dim, 0)
        for x, dim in zip(tensors, dims, strict=True)
    ]
    problem = replace(plan.problem, batch=plan.problem.batch * size)
    return [x.flatten(0, 1) for x in moved], replace(plan, problem=problem)
