"""Chooses the algorithm with the least counted work within a limit on the workspace.

GPUs use `fused` where they can, CPUs mostly `native`, and `query_order` for small windows and maps, as at 7x7. Without
compiled kernels, it is `query_order` or `row_transform`. Exported graphs have their own choice, in exported.py.
"""

from dataclasses import dataclass, field
from functools import lru_cache

from lambdanets.errors import check_choice
from lambdanets.ops.position.algorithm import Algorithm, Cost, Problem
from lambdanets.ops.position.fused import Fused
from lambdanets.ops.position.native import Native
from lambdanets.ops.position.query_order import QueryOrder
from lambdanets.ops.position.row_transform import RowTransform

# In order of preference at equal work.
ALGORITHMS: dict[str, type[Algorithm]] = {
    algorithm.name: algorithm for algorithm in (Fused, Native, QueryOrder, RowTransform)
}

# Limit on the workspace (memory in addition to inputs and output) of one call, which gets as many
# examples as fit. Algorithms that need more for one example are chosen only if all do: that with the
# smallest product of work and workspace.
WORKSPACE_LIMIT_BYTES = 1 << 30


@dataclass(frozen=True)
class Plan:
    """The chosen algorithm, and the costs of all; prints as a table.

    costs: by algorithm name, None if the algorithm does not support the problem.
    notes: by algorithm name, why it is not supported or not chosen, or what it runs on.
    """

    problem: Problem
    algorithm: str
    costs: dict[str, Cost | None]
    notes: dict[str, str]
    automatic: bool
    implementation: Algorithm = field(repr=False, compare=False)

    def __str__(self) -> str:
        limit = f"{WORKSPACE_LIMIT_BYTES >> 20} MiB"
        lines = [f"  {'algorithm':<16}{'work':>10}{'GFLOP':>10}{'workspace MiB':>16}"]
        for name, cost in self.costs.items():
            cells = ["-", "-", "-"]
            if cost is not None:
                counts = (cost.work, cost.multiply_adds)
                cells = [*(f"{2e-9 * count:.3f}" for count in counts), f"{cost.workspace_bytes / 2**20:.1f}"]
            line = f"{'*' if name == self.algorithm else '':2}{name:<16}{cells[0]:>10}{cells[1]:>10}{cells[2]:>16}"
            notes = (self.notes.get(name), f"exceeds {limit}" if _exceeds_limit(cost) else "")
            lines.append(f"{line}  {', '.join(filter(None, notes))}".rstrip())
        reason = f"has the least work of those below {limit}" if self.automatic else "is chosen by name"
        if self.automatic and _exceeds_limit(self.costs[self.algorithm]):
            reason = f"has the least product of work and workspace, since all exceed {limit}"
        return "\n".join([*lines, f"* {self.algorithm} {reason}; work is time in GFLOP of large matrix products"])


def _exceeds_limit(cost: Cost | None) -> bool:
    return cost is not None and cost.workspace_bytes > WORKSPACE_LIMIT_BYTES


def check_algorithm(algorithm: str) -> None:
    """Raise ValueError unless `algorithm` is "auto" or a name in ALGORITHMS."""
    check_choice("algorithm", algorithm, ("auto", *ALGORITHMS))


@lru_cache(maxsize=4096)
def choose(problem: Problem, algorithm: str = "auto") -> Plan:
    """Plan with the named algorithm or, with "auto", the one with the least work.

    Kernels for GPUs are checked when they would be chosen for the first time (`Algorithm.fault`).
    Raises ValueError for an algorithm that does not support the problem.
    """
    check_algorithm(algorithm)
    notes = {name: candidate.unsupported(problem) for name, candidate in ALGORITHMS.items()}
    if notes.get(algorithm):
        raise ValueError(f"algorithm must support the problem, but {algorithm!r} {notes[algorithm]}")
    fitted = {name: _fit_batch(problem, ALGORITHMS[name]) for name in ALGORITHMS if not notes[name]}
    costs = {name: fitted[name][1] if name in fitted else None for name in ALGORITHMS}
    notes |= {name: implementation.note for name, (implementation, _) in fitted.items()}
    if algorithm != "auto":
        return Plan(problem, algorithm, costs, notes, automatic=False, implementation=fitted[algorithm][0])
    while True:
        chosen = _least_work({name: cost for name, (_, cost) in fitted.items()})
        fault = fitted[chosen][0].fault()
        if not fault:
            return Plan(problem, chosen, costs, notes, automatic=True, implementation=fitted[chosen][0])
        del fitted[chosen]
        notes[chosen] = fault


def _fit_batch(problem: Problem, algorithm: type[Algorithm]) -> tuple[Algorithm, Cost]:
    """Halve the batch until the workspace fits; return the algorithm for it and the cost of all calls."""
    batch, implementation = problem.batch, algorithm(problem)
    cost = implementation.cost()
    while batch > 1 and _exceeds_limit(cost):
        half = algorithm(problem._replace(batch=-(-batch // 2)))
        if half.cost().workspace_bytes == cost.workspace_bytes:  # it does not depend on the batch
            break
        batch, implementation, cost = -(-batch // 2), half, half.cost()
    calls = -(-problem.batch // batch)
    return implementation, Cost(calls * cost.multiply_adds, cost.workspace_bytes, calls * cost.work)


def _least_work(costs: dict[str, Cost]) -> str:
    fitting = [name for name, cost in costs.items() if not _exceeds_limit(cost)]
    if fitting:
        return min(fitting, key=lambda name: costs[name].work)
    return min(costs, key=lambda name: costs[name].work * costs[name].workspace_bytes)
