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

from lambdanets.ops.position import position_term
from lambdanets.ops.position.algorithm import NeedsGrad
from lambdanets.ops.position.choose import Plan
from lambdanets.ops.position.position_term import apply_plan, position_gradients
from lambdanets.ops.precision import without_autocast

_TABLE, _CONTENT = 2, 4  # indices in g, q, R, V, L


class TransformableInteraction(position_term.Interaction):
    """`apply_plan` under the transforms of torch.func."""

    forward: Any = staticmethod(position_term.run_forward)
    setup_context = staticmethod(position_term.Interaction.save)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> tuple[Tensor, int]:
        *tensors, plan = inputs
        examples = _examples(info, in_dims, tensors)
        return torch.stack([apply_plan(q, r, v, c, plan) for q, r, v, c in examples]), 0


class TransformableGradients(position_term.Gradients):
    """`position_gradients` under the transforms of torch.func."""

    forward: Any = staticmethod(position_term.run_backward)
    setup_context = staticmethod(position_term.Gradients.save)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> tuple[Any, Any]:
        *tensors, plan, needs = inputs
        results = [position_gradients(g, x, plan, needs) for g, *x in _examples(info, in_dims, tensors)]
        stacked = tuple(None if x[0] is None else torch.stack(x) for x in zip(*results, strict=True))
        return stacked, tuple(None if x is None else 0 for x in stacked)


def derivatives(
    tensors: Sequence[Any], directions: Sequence[Tensor | None], plan: Plan, needs: Sequence[bool]
) -> list[Tensor | None]:
    """Return the needed gradients of the derivative of <g, y> along directions of g, q, R, V and L; None if zero.

    That with respect to g is the Jacobian-vector product of the output, the others are those of its gradients.
    """
    terms: list[list[Tensor]] = [[], [], [], [], []]
    for index, direction in enumerate(directions):
        if direction is not None:
            replaced = (*tensors[:index], direction, *tensors[index + 1 :])
            needed = [need and i != index for i, need in enumerate(needs)]
            for summands, term in zip(terms, _gradients_along(index, replaced, plan, needed), strict=True):
                if term is not None:
                    summands.append(term)
    return [reduce(torch.add, summands) if summands else None for summands in terms]


def _gradients_along(
    index: int, tensors: Sequence[Any], plan: Plan, needs: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    """The needed gradients of the terms of <g, y> that have the tensor with this index, in which it is replaced."""
    grad_output, queries, table, values, content = tensors
    with without_autocast(queries.device):
        if index == _CONTENT:
            output = queries.to(content.dtype) @ content.unsqueeze(1) if needs[0] else None
            grad_queries = grad_output.to(content.dtype) @ content.mT.unsqueeze(1) if needs[1] else None
            return output, grad_queries, None, None, None
        has_content = index < _TABLE  # table and values are not in the term of the content lambda
        factors = (queries, table, values, content if has_content else None)
        output = apply_plan(*factors, plan) if needs[0] else None
        needed = NeedsGrad(needs[1], needs[2], needs[3], needs[_CONTENT] and has_content)
        gradients = position_gradients(grad_output, factors, plan, needed) if any(needed) else (None,) * 4
        return output, *gradients


def _examples(info: Any, dims: Sequence[int | None], tensors: Sequence[Tensor | None]) -> Iterator[list[Any]]:
    """The tensors of each example of vmap."""
    for i in range(info.batch_size):
        yield [x if x is None or dim is None else x.select(dim, i) for x, dim in zip(tensors, dims, strict=False)]
