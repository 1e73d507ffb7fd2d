"""Chooses the algorithm for a position interaction, and can be asked why.

To add an algorithm: a file beside this one with `cost(problem)` and `interact(queries, table, values, problem)`, and
its line in ALGORITHMS. Where it cannot serve a problem, `cost` returns None and its constant `LIMITS` says why.
"""

from dataclasses import dataclass, replace
from types import ModuleType

from lambdanets.ops.position import convolution, depthwise_convolution, lambda_order, value_axis_convolution
from lambdanets.ops.position.problem import Cost, Problem

# In the order in which the automatic choice prefers them at equal cost.
ALGORITHMS: dict[str, ModuleType] = {
    "lambda_order": lambda_order,
    "convolution": convolution,
    "depthwise_convolution": depthwise_convolution,
    "value_axis_convolution": value_axis_convolution,
}

# An algorithm that would hold more than this an example, beside its inputs, is passed over while another stays below.
WORKSPACE_LIMIT_BYTES = 2 << 30


@dataclass(frozen=True)
class Plan:
    """The algorithm chosen for a problem and what each would cost, None where it cannot serve; prints as a table."""

    problem: Problem
    costs: dict[str, Cost | None]
    chosen: str

    def __str__(self) -> str:
        width = max(len(name) for name in self.costs) + 2
        lines = [f"{'':2}{'algorithm':<{width}}{'GFLOP':>10}{'workspace MiB':>16}"]
        for name, cost in self.costs.items():
            mark = "*" if name == self.chosen else ""
            operations = "-" if cost is None else f"{cost.operations / 1e9:.3f}"
            workspace = "-" if cost is None else f"{cost.workspace_bytes / 2**20:.1f}"
            lines.append(f"{mark:2}{name:<{width}}{operations:>10}{workspace:>16}")
        return "\n".join(lines)


def check_algorithm(algorithm: str) -> None:
    """Raise ValueError unless the name is "auto" or one of ALGORITHMS."""
    if algorithm not in ("auto", *ALGORITHMS):
        raise ValueError(f"algorithm must be one of {', '.join(['auto', *ALGORITHMS])}; got {algorithm!r}")


def make_plan(problem: Problem, algorithm: str = "auto") -> Plan:
    """The plan for a problem: the algorithm of that name, or with "auto" the one with the fewest operations.

    The automatic choice depends on the problem alone, and not on its batch: it is made for one example, so that a batch
    is computed as its examples are, and torch.compile and torch.export need not tell batches apart. It prefers
    algorithms below the workspace limit; where none is, the one with the smallest workspace.
    Raises ValueError for an unknown name, or one that cannot serve the problem.
    """
    check_algorithm(algorithm)
    costs: dict[str, Cost | None] = {name: module.cost(problem) for name, module in ALGORITHMS.items()}
    if algorithm != "auto":
        if costs[algorithm] is None:
            limits = ALGORITHMS[algorithm].LIMITS
            raise ValueError(f"algorithm must be one that serves a grid of {problem.grid}; {algorithm!r} {limits}")
        return Plan(problem, costs, algorithm)
    example = replace(problem, batch=1)
    of_example = {name: module.cost(example) for name, module in ALGORITHMS.items()}
    serving = {name: cost for name, cost in of_example.items() if cost is not None}
    fitting = {name: cost for name, cost in serving.items() if cost.workspace_bytes <= WORKSPACE_LIMIT_BYTES}
    if fitting:
        chosen = _least({name: cost.operations for name, cost in fitting.items()})
    else:
        chosen = _least({name: cost.workspace_bytes for name, cost in serving.items()})
    return Plan(problem, costs, chosen)


def _least(figures: dict[str, int]) -> str:
    """The first name with the smallest figure; comparisons one by one, which torch.compile can trace and min() not."""
    best, smallest = next(iter(figures.items()))
    for name, figure in figures.items():
        if figure < smallest:
            best, smallest = name, figure
    return best
