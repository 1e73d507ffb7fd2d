"""Benchmark of time and memory against the number of positions: algorithms of the position term, and attention."""

import functools
import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from lambdanets.ops import position_interaction
from lambdanets.ops.position.algorithm import Problem
from lambdanets.ops.position.choose import ALGORITHMS, choose
from lambdanets_lab.benchmark.measurement import Case, Prepared, Row
from lambdanets_lab.benchmark.options import Scaling
from lambdanets_lab.benchmark.peers import Skipped
from lambdanets_lab.timing import summarize

ATTENTION = "sdpa"  # scaled_dot_product_attention over all positions, without a position term
NAMES = [*ALGORITHMS, ATTENTION]


def make_cases(options: Scaling, device: torch.device, rows: Sequence[Row]) -> list[Case]:
    """Make cases in ascending size per pass.

    rows: measured so far. A candidate that was too slow is not measured at larger sizes.
    """
    grids: list[tuple[tuple[int, ...], bool]] = [((side, side), False) for side in sorted(options.sides)]
    grids += [((length,), True) for length in sorted(options.lengths)]
    return [_case(options, device, rows, grid, causal, phase) for phase in options.passes for grid, causal in grids]


def _case(
    options: Scaling, device: torch.device, rows: Sequence[Row], grid: tuple[int, ...], causal: bool, phase: str
) -> Case:
    training, n, dtype = phase == "training", math.prod(grid), getattr(torch, options.dtype)
    setting = "causal sequence" if causal else "square map"
    b, h, k, v = options.batch_size, options.heads, options.query_depth, options.value_depth
    before = tuple(side - 1 for side in grid)
    after = (0,) if causal else before
    plan = choose(Problem(b, h, grid, k, v, 1, before, after, causal, dtype, str(device)))
    sizes = {"setting": setting, "n": n, "pass": phase, "auto": plan.algorithm}

    @functools.cache
    def inputs() -> list[Tensor]:
        """Queries, keys of attention, table, values, and the gradient of the output."""
        torch.manual_seed(0)
        table = (*(2 * side - 1 for side in grid), k)
        shapes = (b, h, n, k), (b, h, n, k), table, (b, n, v), (b, h, n, v)
        return [torch.randn(shape).to(device, dtype) for shape in shapes]

    def prepare(candidate: str, function: Callable[..., Tensor]) -> Prepared:
        smaller = [
            row
            for row in rows
            if row.candidate == candidate
            and row.seconds
            and (row.sizes["setting"], row.sizes["pass"]) == (setting, phase)
        ]
        if smaller and (seconds := summarize(smaller[-1].seconds).median) > options.seconds / 4:
            reason = f"takes {seconds:.1f} s for n = {smaller[-1].sizes['n']}"
            raise Skipped(f"{reason}, more than a quarter of --seconds {options.seconds:g}")

        *factors, grad_output = inputs()
        factors = [factor.requires_grad_(training) for factor in factors]
        return Prepared(function, tuple(factors), grad_output if training else None)

    def prepare_algorithm(candidate: str) -> Prepared:
        if plan.costs[candidate] is None:
            raise Skipped(plan.notes[candidate])
        run = functools.partial(position_interaction, grid=grid, causal=causal, algorithm=candidate)
        return prepare(candidate, lambda queries, _, table, values: run(queries, table, values))

    def attend(queries: Tensor, keys: Tensor, _: Tensor, values: Tensor) -> Tensor:
        values = values.unsqueeze(1).expand(-1, h, -1, -1)
        return F.scaled_dot_product_attention(queries, keys, values, is_causal=causal)

    builders: dict[str, Callable[[], Prepared]] = {
        name: functools.partial(prepare_algorithm, name) for name in ALGORITHMS
    }
    builders[ATTENTION] = functools.partial(prepare, ATTENTION, attend)
    names = options.candidates or NAMES
    return Case(sizes, {name: prepare for name, prepare in builders.items() if name in names})
