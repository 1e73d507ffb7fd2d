"""Chooses the algorithm for a position interaction, and explains the choice.

To add an algorithm: a file beside this one with a subclass of `Algorithm` and of `Bound`, and a line in ALGORITHMS.
"""

from dataclasses import dataclass, field, replace
from functools import lru_cache

import torch

from lambdanets.ops.position.algorithm import Algorithm, Bound, Refusals
from lambdanets.ops.position.convolution import Convolution, DepthwiseConvolution, ValueAxisConvolution
from lambdanets.ops.position.fourier import Fourier
from lambdanets.ops.position.fused import Fused
from lambdanets.ops.position.lambda_order import LambdaOrder
from lambdanets.ops.position.mixed import Mixed
from lambdanets.ops.position.problem import Cost, Problem
from lambdanets.ops.position.query_order import QueryOrder
from lambdanets.ops.position.rates import Corrections, Rates, corrections_of, rates_of

# In the order in which the automatic choice prefers them at equal cost.
ALGORITHMS: dict[str, Algorithm] = {
    algorithm.name: algorithm
    for algorithm in (
        Fused(),
        QueryOrder(),
        Mixed(),
        Fourier(),
        LambdaOrder(),
        Convolution(),
        DepthwiseConvolution(),
        ValueAxisConvolution(),
    )
}

# By name; a dictionary could not be the key of a cache.
_Refused = tuple[tuple[str, Refusals], ...]

# An algorithm that would hold more than this beside inputs and output is passed over while another stays below.
WORKSPACE_LIMIT_BYTES = 1 << 30


@dataclass(frozen=True)
class Plan:
    """What each algorithm would cost for a problem, None where it cannot serve, and the choice; prints as a table.

    chosen: for the forward pass. backward: for the gradients, which need nothing of the forward pass but its inputs.
    automatic: whether the plan chose them, and not the caller. refused: by algorithm, why the plan does not choose it
    although it would serve.
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

    The choice depends on the problem, the device's rates and `Algorithm.refusals`, for which fused kernels run their
    self-test where one would be chosen for the first time. It prefers algorithms below the workspace limit; where none
    is, the one with the smallest workspace.
    Raises ValueError for an unknown name, or one that cannot serve the problem.
    """
    check_algorithm(algorithm)
    rates, corrections = rates_of(problem.device), corrections_of(problem.device)
    refused: _Refused = ()
    while True:
        plan = _make_plan(problem, algorithm, rates, corrections, refused, WORKSPACE_LIMIT_BYTES)
        if not plan.automatic:
            return plan
        unknown = [name for name in dict.fromkeys((plan.chosen, plan.backward)) if name not in plan.refused]
        new = tuple((name, found) for name in unknown if any(found := ALGORITHMS[name].refusals(problem)))
        if not new:
            return plan
        refused += new


def bind(problem: Problem, algorithm: str) -> tuple[Bound, torch.dtype]:
    """What computes a problem by an algorithm that serves it, and the dtype to compute in."""
    return _bind(problem, ALGORITHMS[algorithm], rates_of(problem.device))


@lru_cache(maxsize=1024)
def _bind(problem: Problem, algorithm: Algorithm, rates: Rates) -> tuple[Bound, torch.dtype]:
    dtype = algorithm.compute_dtype(problem.dtype, rates)
    return algorithm.bind(problem, rates.for_products_of(dtype)), dtype


def predicted_costs(problem: Problem, rates: Rates, corrections: Corrections = ()) -> dict[str, Cost | None]:
    """What each algorithm is predicted to cost with these rates, None where it cannot serve."""
    costs: dict[str, Cost | None] = {}
    for name, algorithm in ALGORITHMS.items():
        dtype = algorithm.compute_dtype(problem.dtype, rates)
        costs[name] = algorithm.cost(replace(problem, dtype=dtype), rates.for_products_of(dtype))
    for name, of_dtype, forward, backward in corrections:
        cost = costs.get(name)
        if cost is not None and of_dtype == str(problem.dtype).removeprefix("torch."):
            seconds, backward_seconds = forward * cost.seconds, backward * cost.backward_seconds
            costs[name] = replace(cost, seconds=seconds, backward_seconds=backward_seconds)
    return costs


@lru_cache(maxsize=1024)
def _make_plan(
    problem: Problem, algorithm: str, rates: Rates, corrections: Corrections, refused: _Refused, limit: int
) -> Plan:
    costs = predicted_costs(problem, rates, corrections)
    if algorithm != "auto":
        if costs[algorithm] is None:
            limits = ALGORITHMS[algorithm].limits
            raise ValueError(f"algorithm must be one that serves a grid of {problem.grid}; {algorithm!r} {limits}")
        return Plan(problem, costs, algorithm, algorithm)
    refusals = dict(refused)
    chosen, backward = (
        _cheapest({name: c for name, c in costs.items() if c and not refusals.get(name, Refusals())[way]}, way, limit)
        for way in (0, 1)
    )
    return Plan(problem, costs, chosen, backward, automatic=True, refused=refusals)


def _cheapest(costs: dict[str, Cost], way: int, limit: int) -> str:
    """The algorithm with the least time for the forward (0) or the backward pass (1), below a limit on workspace."""
    fitting = {name: cost for name, cost in costs.items() if cost.workspaces[way] <= limit}
    if not fitting:
        return min(costs, key=lambda name: costs[name].workspaces[way])
    return min(fitting, key=lambda name: (fitting[name].seconds, fitting[name].backward_seconds)[way])
