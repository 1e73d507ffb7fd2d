"""Chooses the algorithm for a position interaction, and can be asked why.

To add an algorithm: a file beside this one with `cost(problem)` and `interact(queries, table, values, problem)`, and
its line in ALGORITHMS.
"""

from dataclasses import dataclass
from types import ModuleType

from lambdanets.ops.position import convolution, lambda_order
from lambdanets.ops.position.problem import Cost, Problem

ALGORITHMS: dict[str, ModuleType] = {
    "lambda_order": lambda_order,
    "convolution": convolution,
}

# An algorithm that would hold more than this beside its inputs is passed over while another stays below it.
WORKSPACE_LIMIT_BYTES = 2 << 30


@dataclass(frozen=True)
class Plan:
    """The algorithm chosen for a problem and what each would cost; prints as a table."""

    problem: Problem
    costs: dict[str, Cost]
    chosen: str

    def __str__(self) -> str:
        lines = [f"{'':2}{'algorithm':<14}{'GFLOP':>10}{'workspace MiB':>16}"]
        for name, cost in self.costs.items():
            mark = "*" if name == self.chosen else ""
            lines.append(f"{mark:2}{name:<14}{cost.operations / 1e9:>10.3f}{cost.workspace_bytes / 2**20:>16.1f}")
        return "\n".join(lines)


def check_algorithm(algorithm: str) -> None:
    """Raise ValueError unless the name is "auto" or one of ALGORITHMS."""
    if algorithm != "auto" and algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm must be one of {', '.join(['auto', *ALGORITHMS])}; got {algorithm!r}")


def make_plan(problem: Problem, algorithm: str = "auto") -> Plan:
    """The plan for a problem: the algorithm of that name, or with "auto" the one with the fewest operations.

    The automatic choice depends on the problem alone. It prefers algorithms below the workspace limit; where none is,
    the one with the smallest workspace. Raises ValueError for an unknown name.
    """
    check_algorithm(algorithm)
    costs = {name: module.cost(problem) for name, module in ALGORITHMS.items()}
    if algorithm != "auto":
        return Plan(problem, costs, algorithm)
    fitting = [name for name, cost in costs.items() if cost.workspace_bytes <= WORKSPACE_LIMIT_BYTES]
    if fitting:
        chosen = _least({name: costs[name].operations for name in fitting})
    else:
        chosen = _least({name: cost.workspace_bytes for name, cost in costs.items()})
    return Plan(problem, costs, chosen)


def _least(figures: dict[str, int]) -> str:
    """The first name with the smallest figure; comparisons one by one, which torch.compile can trace and min() not."""
    best, smallest = next(iter(figures.items()))
    for name, figure in figures.items():
        if figure < smallest:
            best, smallest = name, figure
    return best
