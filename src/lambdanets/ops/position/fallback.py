"""Follows a plan; an algorithm that it chose and that raises may be replaced, see `Algorithm.refuse`.

A fused kernel that passed its self-test may still ask for more shared memory than the device has, or fail to compile,
at another shape. That raises before anything is computed. An algorithm that the caller named is never replaced.
"""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from lambdanets.ops.position.execution import FactorGradients, run_backward, run_forward
from lambdanets.ops.position.plan import ALGORITHMS, Plan, make_plan
from lambdanets.ops.position.problem import NeedsGrad

_Result = TypeVar("_Result")


def follow_forward(queries: Tensor, table: Tensor, values: Tensor, content: Tensor | None, plan: Plan) -> Tensor:
    """`run_forward` by the algorithm that a plan has for the forward pass."""

    def run(algorithm: str) -> Tensor:
        return run_forward(queries, table, values, content, plan.problem, algorithm)

    return _follow(run, plan, "forward", plan.chosen)


def follow_backward(
    grad_output: Tensor,
    queries: Tensor,
    table: Tensor,
    values: Tensor,
    content: Tensor | None,
    plan: Plan,
    needs_grad: NeedsGrad,
) -> FactorGradients:
    """`run_backward` by the algorithm that a plan has for the backward pass."""

    def run(algorithm: str) -> FactorGradients:
        return run_backward(grad_output, queries, table, values, content, plan.problem, algorithm, needs_grad)

    return _follow(run, plan, "backward", plan.backward)


def _follow(run: Callable[[str], _Result], plan: Plan, way: str, algorithm: str) -> _Result:
    try:
        return run(algorithm)
    except torch.OutOfMemoryError:  # another algorithm would need more
        raise
    except Exception as error:
        if not plan.automatic or not ALGORITHMS[algorithm].refuse(plan.problem, way, error):
            raise
    again = make_plan(plan.problem)
    return run(again.chosen if way == "forward" else again.backward)
