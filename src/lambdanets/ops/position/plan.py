"""Chooses the algorithm for a position interaction and explains the choice.

To add an algorithm, subclass `Algorithm` and `BoundAlgorithm` in a new file in this folder, and add it to ALGORITHMS.
"""

from dataclasses import dataclass, field, replace
from functools import lru_cache

import torch

from lambdanets.ops.position.algorithm import Algorithm, BoundAlgorithm, Exclusions
from lambdanets.ops.position.convolution import Convolution
from lambdanets.ops.position.fourier import Fourier
from lambdanets.ops.position.fused import Fused
from lambdanets.ops.position.lambda_order import LambdaOrder
from lambdanets.ops.position.mixed import Mixed
from lambdanets.ops.position.native import Native
from lambdanets.ops.position.problem import Cost, Problem
from lambdanets.ops.position.query_order import QueryOrder
from lambdanets.ops.position.rates import Corrections, Rates, device_corrections, device_rates

# In order of preference at equal cost.
ALGORITHMS: dict[str, Algorithm] = {
    algorithm.name: algorithm
    for algorithm in (
        Fused(),
        Native(),
        QueryOrder(),
        Mixed(),
        Fourier(),
        LambdaOrder(),
        Convolution(),
    )
}

# Algorithm names and reasons, as a hashable cache key.
_Excluded = tuple[tuple[str, Exclusions], ...]

# Limit on the workspace (memory in addition to inputs and output) of one call, which gets as many examples as fit.
# Algorithms that need more for one example are chosen only if all do.
WORKSPACE_LIMIT_BYTES = 1 << 30


@dataclass(frozen=True)
class Plan:
    """Predicted costs of all algorithms and the chosen ones; prints as a table.

    costs: by algorithm name, None if the algorithm does not support the problem.
    chosen: algorithm for the forward pass. backward: algorithm for the backward pass; it may differ, because gradients
    are computed only from the inputs of the forward pass.
    automatic: False if the caller chose the algorithm. excluded: the reasons why "auto" does not choose algorithms that
    support the problem.
    """

    problem: Problem
    costs: dict[str, Cost | None]
    chosen: str
    backward: str
    automatic: bool = False
    excluded: dict[str, Exclusions] = field(default_factory=dict)

    def __str__(self) -> str:
        width = max(len(name) for name in self.costs) + 3
        header = f"{'GFLOP':>10}{'workspace MiB':>16}{'forward ms':>13}{'backward ms':>13}"
        lines = [f"{'':2}{'algorithm':<{width}}{header}"]
        for name, cost in self.costs.items():
            marks = ("*" if name == self.chosen else "") + ("'" if name == self.backward else "")
            cells = ["-"] * 4
            if cost is not None:
                seconds = (cost.seconds, cost.backward_seconds)
                cells = [f"{cost.operations / 1e9:.3f}", f"{max(cost.workspaces) / 2**20:.1f}"]
                cells += [f"{1e3 * time:.3g}" for time in seconds]
            columns = "".join(f"{cell:>{size}}" for cell, size in zip(cells, (10, 16, 13, 13), strict=True))
            lines.append(f"{marks:2}{name:<{width}}{columns}")
            reasons = dict.fromkeys(reason for reason in self.excluded.get(name, ()) if reason)
            lines += [f"{'':4}not chosen: {reason}" for reason in reasons]
        return "\n".join([*lines, "* chosen, ' chosen for the backward pass"])


def check_algorithm(algorithm: str) -> None:
    """Raise ValueError unless `algorithm` is "auto" or a name in ALGORITHMS."""
    if algorithm not in ("auto", *ALGORITHMS):
        raise ValueError(f"algorithm must be one of {', '.join(['auto', *ALGORITHMS])}; got {algorithm!r}")


def make_plan(problem: Problem, algorithm: str = "auto") -> Plan:
    """Make a plan with the named algorithm or, with "auto", the algorithms with the lowest predicted times.

    The choice depends on the problem, the rates of the device and `Algorithm.exclusions`. The self-test of a fused
    kernel runs when it would be chosen for the first time. Algorithms below the workspace limit are preferred; if all
    exceed it, the one with the smallest workspace is chosen.
    Raises ValueError for an unknown algorithm or one that does not support the problem.
    """
    check_algorithm(algorithm)
    rates, corrections = device_rates(problem.device), device_corrections(problem.device)
    excluded: _Excluded = ()
    while True:
        plan = _make_plan(problem, algorithm, rates, corrections, excluded, WORKSPACE_LIMIT_BYTES)
        if not plan.automatic:
            return plan
        unchecked = [name for name in dict.fromkeys((plan.chosen, plan.backward)) if name not in plan.excluded]
        new = tuple((name, reasons) for name in unchecked if any(reasons := ALGORITHMS[name].exclusions(problem)))
        if not new:
            return plan
        excluded += new


def bind(problem: Problem, algorithm: str) -> tuple[BoundAlgorithm, torch.dtype]:
    """Bind the named algorithm to a problem that it supports; also return the dtype in which it computes."""
    return _bind(problem, ALGORITHMS[algorithm], device_rates(problem.device), WORKSPACE_LIMIT_BYTES)


@lru_cache(maxsize=1024)
def _bind(problem: Problem, algorithm: Algorithm, rates: Rates, limit: int) -> tuple[BoundAlgorithm, torch.dtype]:
    dtype = algorithm.compute_dtype(problem, rates)
    batch, _ = _fit_batch(problem, algorithm, rates, limit)
    return algorithm.bind(problem.limit_batch(batch), rates.for_matmul_dtype(dtype)), dtype


def _fit_batch(problem: Problem, algorithm: Algorithm, rates: Rates, limit: int) -> tuple[int, Cost | None]:
    """Halve the batch until the workspace fits; return the batch and the cost of the calls for the whole problem."""
    dtype, batch = algorithm.compute_dtype(problem, rates), problem.batch
    problem, rates = replace(problem, dtype=dtype), rates.for_matmul_dtype(dtype)
    cost = algorithm.cost(problem, rates)
    while cost is not None and batch > 1 and max(cost.workspaces) > limit:
        batch = -(-batch // 2)
        cost = algorithm.cost(problem.limit_batch(batch), rates)
    return batch, None if cost is None else cost.repeat(-(-problem.batch // batch))


def predicted_costs(
    problem: Problem, rates: Rates, corrections: Corrections = (), limit: int | None = None
) -> dict[str, Cost | None]:
    """Predict the cost of each algorithm from rates; None if it does not support the problem.

    limit: on the workspace of a call, in bytes; default WORKSPACE_LIMIT_BYTES.
    """
    limit = WORKSPACE_LIMIT_BYTES if limit is None else limit
    costs = {name: _fit_batch(problem, algorithm, rates, limit)[1] for name, algorithm in ALGORITHMS.items()}
    for name, dtype_name, forward, backward in corrections:
        cost = costs.get(name)
        if cost is not None and dtype_name == str(problem.dtype).removeprefix("torch."):
            seconds, backward_seconds = forward * cost.seconds, backward * cost.backward_seconds
            costs[name] = replace(cost, seconds=seconds, backward_seconds=backward_seconds)
    return costs


@lru_cache(maxsize=1024)
def _make_plan(
    problem: Problem, algorithm: str, rates: Rates, corrections: Corrections, excluded: _Excluded, limit: int
) -> Plan:
    costs = predicted_costs(problem, rates, corrections, limit)
    if algorithm != "auto":
        if costs[algorithm] is None:
            limits = ALGORITHMS[algorithm].limits
            raise ValueError(f"algorithm must support a grid of {problem.grid}, got {algorithm!r}, which {limits}")
        return Plan(problem, costs, algorithm, algorithm)
    exclusions = dict(excluded)
    chosen, backward = (
        _fastest({name: c for name, c in costs.items() if c and not exclusions.get(name, Exclusions())[i]}, i, limit)
        for i in (0, 1)
    )
    return Plan(problem, costs, chosen, backward, automatic=True, excluded=exclusions)


def _fastest(costs: dict[str, Cost], i: int, limit: int) -> str:
    """Return the fastest algorithm below the workspace limit, for the forward (i = 0) or the backward pass (i = 1)."""
    fitting = {name: cost for name, cost in costs.items() if cost.workspaces[i] <= limit}
    if not fitting:
        return min(costs, key=lambda name: costs[name].workspaces[i])
    return min(fitting, key=lambda name: (fitting[name].seconds, fitting[name].backward_seconds)[i])
