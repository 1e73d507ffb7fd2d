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

    def attend(queries: Tensor, keys: Tensor, _: Tensor, values: Tensor) -> Tensor:
        values = values.unsqueeze(1).expand(-1, h, -1, -1)
        return F.scaled_dot_product_attention(queries, keys, values, is_causal=causal)

    def interact(algorithm: str, queries: Tensor, _: Tensor, table: Tensor, values: Tensor) -> Tensor:
        return position_interaction(queries, table, values, grid=grid, causal=causal, algorithm=algorithm)

    def prepare(candidate: str) -> Prepared:
        if candidate != ATTENTION and plan.costs[candidate] is None:
            raise Skipped(plan.notes[candidate])
        measured = [
            (row.sizes["n"], row.median)
            for row in rows
            if row.median and (row.candidate, row.sizes["setting"], row.sizes["pass"]) == (candidate, setting, phase)
        ]
        if measured and measured[-1][1] > options.seconds / 4:
            reason = "takes {1:.1f} s for n = {0}".format(*measured[-1])
            raise Skipped(f"{reason}, more than a quarter of --seconds {options.seconds:g}")
        function: Callable[..., Tensor] = attend if candidate == ATTENTION else functools.partial(interact, candidate)
        *factors, grad_output = inputs()
        factors = [factor.requires_grad_(training) for factor in factors]
        return Prepared(function, tuple(factors), grad_output if training else None)

    names = options.candidates or NAMES
    return Case(sizes, {name: functools.partial(prepare, name) for name in NAMES if name in names})
