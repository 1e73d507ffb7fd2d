"""Chooses the algorithm for a position interaction, and can be asked why.

To add an algorithm: a file beside this one with the functions of `query_order`, and its line in ALGORITHMS. Where it
cannot serve a problem, `cost` returns None and its constant `LIMITS` says why.
"""

from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import ModuleType

import torch

from lambdanets.ops.position import (
    convolution,
    depthwise_convolution,
    fourier,
    fused,
    lambda_order,
    mixed,
    query_order,
    value_axis_convolution,
)
from lambdanets.ops.position.fused.verification import Refusals
from lambdanets.ops.position.problem import Cost, Problem
from lambdanets.ops.position.rates import Corrections, Rates, corrections_of, rates_of

# In the order in which the automatic choice prefers them at equal cost.
ALGORITHMS: dict[str, ModuleType] = {
    "fused": fused,
    "query_order": query_order,
    "mixed": mixed,
    "fourier": fourier,
    "lambda_order": lambda_order,
    "convolution": convolution,
    "depthwise_convolution": depthwise_convolution,
    "value_axis_convolution": value_axis_convolution,
}

# Those that bfloat16 values go through in bfloat16, where its products are faster than those of float32.
KEEP_BFLOAT16 = ("query_order", "lambda_order", "convolution", "depthwise_convolution", "value_axis_convolution")

# Those that add the content term themselves, so that the output is written once.
TAKE_CONTENT = ("fused",)

# An algorithm that would hold more than this beside inputs and output is passed over while another stays below.
WORKSPACE_LIMIT_BYTES = 1 << 30


@dataclass(frozen=True)
class Plan:
    """What each algorithm would cost for a problem, None where it cannot serve, and the choice; prints as a table.

    chosen: for the forward pass. backward: for the gradients, which need nothing of the forward pass but its inputs.
    automatic: whether the plan chose them, and not the caller. refused: by algorithm, why the plan does not choose it
    though it would serve: a kernel failed its self-test on this device, or could not be launched for this problem.
    """

    problem: Problem
    costs: dict[str, Cost | None]
    chosen: str
    backward: str
    automatic: bool = False
    refused: dict[str, Refusals] = field(default_factory=dict)

    def __str__(self) -> str:
        width = max(len(name) for name in self.costs) + 3
        heads = f"{'GFLOP':>10}{'workspace MiB':>16}{'forward ms':>13}{'backward ms':>13}"
        lines = [f"{'':2}{'algorithm':<{width}}{heads}"]
        for name, cost in self.costs.items():
            marks = ("*" if name == self.chosen else "") + ("'" if name == self.backward else "")
            figures = ["-"] * 4
            if cost is not None:
                seconds = (cost.seconds, cost.backward_seconds)
                figures = [f"{cost.operations / 1e9:.3f}", f"{max(cost.workspaces) / 2**20:.1f}"]
                figures += [f"{1e3 * time:.3g}" for time in seconds]
            columns = "".join(f"{figure:>{size}}" for figure, size in zip(figures, (10, 16, 13, 13), strict=True))
            lines.append(f"{marks:2}{name:<{width}}{columns}")
            reasons = dict.fromkeys(reason for reason in self.refused.get(name, ()) if reason)
            lines += [f"{'':4}not chosen: {reason}" for reason in reasons]
        return "\n".join([*lines, "* chosen, ' chosen for the backward pass"])


def check_algorithm(algorithm: str) -> None:
    """Raise ValueError unless the name is "auto" or one of ALGORITHMS."""
    if algorithm not in ("auto", *ALGORITHMS):
        raise ValueError(f"algorithm must be one of {', '.join(['auto', *ALGORITHMS])}; got {algorithm!r}")


def make_plan(problem: Problem, algorithm: str = "auto") -> Plan:
    """The plan for a problem: the algorithm of that name, or with "auto" those with the least predicted time.

    The choice depends on the problem, the device's rates, and for fused kernels on their self-test on that device
    (`fused.verification`), which runs where such a kernel would be chosen for the first time. It prefers algorithms
    below the workspace limit; where none is, the one with the smallest workspace.
    Raises ValueError for an unknown name, or one that cannot serve the problem.
    """
    check_algorithm(algorithm)
    rates, corrections = rates_of(problem.device), corrections_of(problem.device)
    plan = _make_plan(problem, algorithm, rates, corrections, Refusals())
    if plan.automatic and "fused" in (plan.chosen, plan.backward):
        plan = _make_plan(problem, algorithm, rates, corrections, fused.refusals(problem))
    return plan


def working(problem: Problem, algorithm: str) -> tuple[torch.dtype, Rates]:
    """The dtype that an algorithm computes a problem in, and the rates for it.

    bfloat16 is computed in float32 where products of that are as fast, and by algorithms that would lose by rounding
    between their steps, those not in KEEP_BFLOAT16; float16 by all but the fused kernels, which scale it.
    """
    return _working(problem.dtype, algorithm, rates_of(problem.device))


def _working(dtype: torch.dtype, algorithm: str, rates: Rates) -> tuple[torch.dtype, Rates]:
    if dtype not in (torch.bfloat16, torch.float16) or algorithm == "fused":
        return dtype, rates
    if dtype == torch.float16:
        return torch.float32, rates
    if rates.bfloat16_gain <= 1 or algorithm not in KEEP_BFLOAT16:
        return torch.float32, rates
    return dtype, replace(rates, operations_per_second=rates.operations_per_second * rates.bfloat16_gain)


def predicted_costs(problem: Problem, rates: Rates, corrections: Corrections = ()) -> dict[str, Cost | None]:
    """What each algorithm is predicted to cost with these rates, None where it cannot serve."""
    costs: dict[str, Cost | None] = {}
    for name, module in ALGORITHMS.items():
        dtype, rates_for_it = _working(problem.dtype, name, rates)
        costs[name] = module.cost(replace(problem, dtype=dtype), rates_for_it)
    for name, of_dtype, forward, backward in corrections:
        cost = costs.get(name)
        if cost is not None and of_dtype == str(problem.dtype).removeprefix("torch."):
            seconds, backward_seconds = forward * cost.seconds, backward * cost.backward_seconds
            costs[name] = replace(cost, seconds=seconds, backward_seconds=backward_seconds)
    return costs


@lru_cache(maxsize=1024)
def _make_plan(problem: Problem, algorithm: str, rates: Rates, corrections: Corrections, refusals: Refusals) -> Plan:
    costs = predicted_costs(problem, rates, corrections)
    if algorithm != "auto":
        if costs[algorithm] is None:
            limits = ALGORITHMS[algorithm].LIMITS
            raise ValueError(f"algorithm must be one that serves a grid of {problem.grid}; {algorithm!r} {limits}")
        return Plan(problem, costs, algorithm, algorithm)
    serving = {name: cost for name, cost in costs.items() if cost is not None}
    chosen = _cheapest({name: cost for name, cost in serving.items() if not (name == "fused" and refusals.forward)}, 0)
    backward = _cheapest(
        {name: cost for name, cost in serving.items() if not (name == "fused" and refusals.backward)}, 1
    )
    refused = {"fused": refusals} if any(refusals) else {}
    return Plan(problem, costs, chosen, backward, automatic=True, refused=refused)


def _cheapest(costs: dict[str, Cost], way: int) -> str:
    """The algorithm with the least time for the forward (0) or the backward pass (1), below the workspace limit."""
    fitting = {name: cost for name, cost in costs.items() if cost.workspaces[way] <= WORKSPACE_LIMIT_BYTES}
    if not fitting:
        return min(costs, key=lambda name: costs[name].workspaces[way])
    return min(fitting, key=lambda name: (fitting[name].seconds, fitting[name].backward_seconds)[way])
