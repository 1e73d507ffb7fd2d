"""Follows a plan; where the fused kernels it chose raise, a plain algorithm takes their place.

A kernel that passed its self-test may still ask for more shared memory than the device has, or fail to compile, at
another shape. That raises before anything is computed. An algorithm that the caller named is followed, never replaced.
"""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from lambdanets.ops.position import fused
from lambdanets.ops.position.execution import Gradients, run_backward, run_forward
from lambdanets.ops.position.plan import Plan, make_plan
from lambdanets.ops.position.problem import Wanted

_Result = TypeVar("_Result")


def follow_forward(queries: Tensor, table: Tensor, values: Tensor, content: Tensor | None, plan: Plan) -> Tensor:
    """`run_forward` by the algorithm that a plan has for the forward pass."""

    def run(algorithm: str) -> Tensor:
        return run_forward(queries, table, values, content, plan.problem, algorithm)

    return _follow(run, plan, "forward", plan.chosen)


def follow_backward(
    gradient: Tensor,
    queries: Tensor,
    table: Tensor,
    values: Tensor,
    content: Tensor | None,
    plan: Plan,
    wanted: Wanted,
) -> Gradients:
    """`run_backward` by the algorithm that a plan has for the backward pass."""

    def run(algorithm: str) -> Gradients:
        return run_backward(gradient, queries, table, values, content, plan.problem, algorithm, wanted)

    return _follow(run, plan, "backward", plan.backward)


def _follow(run: Callable[[str], _Result], plan: Plan, way: str, algorithm: str) -> _Result:
    if not plan.automatic or algorithm != "fused":
        return run(algorithm)
    try:
        return run(algorithm)
    except torch.OutOfMemoryError:  # a plain algorithm would need more
        raise
    except Exception as error:
        fused.refuse(plan.problem, way, error)
    again = make_plan(plan.problem)
    return run(again.chosen if way == "forward" else again.backward)
