"""Benchmark of time and memory against the number of positions: algorithms of the position term, and attention."""

import functools
import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from lambdanets.ops import position_interaction
from lambdanets.ops.position.choose import ALGORITHMS, choose
from lambdanets.ops.position.position_term import make_problem
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
    training, n = phase == "training", math.prod(grid)
    setting = "causal sequence" if causal else "square map"
    query_shape = options.batch_size, options.heads, n, options.query_depth
    shapes = {
        "queries": query_shape,
        "keys": query_shape,  # of attention
        "table": (*(2 * side - 1 for side in grid), options.query_depth),
        "values": (options.batch_size, n, options.value_depth),
        "output gradient": (*query_shape[:-1], options.value_depth),
    }

    def make_inputs(make: Callable[..., Tensor], device: torch.device) -> dict[str, Tensor]:
        return {name: make(shape).to(device, getattr(torch, options.dtype)) for name, shape in shapes.items()}

    @functools.cache
    def inputs() -> dict[str, Tensor]:
        torch.manual_seed(options.seed)
        return {name: x.requires_grad_(training) for name, x in make_inputs(torch.randn, device).items()}

    empty = make_inputs(functools.partial(torch.empty, device="meta"), torch.device("meta"))
    problem = make_problem(empty["queries"], empty["table"], empty["values"].unsqueeze(-1), grid, causal)
    plan = choose(problem._replace(device=str(device)))
    sizes = {"setting": setting, "n": n, "pass": phase, "auto": plan.algorithm}

    def prepare(candidate: str, function: Callable[[dict[str, Tensor]], Tensor]) -> Prepared:
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

        def release() -> None:
            for tensor in inputs().values():
                tensor.grad = None

        def run() -> None:
            release()
            output = function(inputs())
            if training:
                output.backward(inputs()["output gradient"])

        return Prepared(run, release)

    def prepare_algorithm(candidate: str) -> Prepared:
        if plan.costs[candidate] is None:
            raise Skipped(plan.notes[candidate])
        run = functools.partial(position_interaction, grid=grid, causal=causal, algorithm=candidate)
        return prepare(candidate, lambda i: run(i["queries"], i["table"], i["values"]))

    def attend(inputs: dict[str, Tensor]) -> Tensor:
        values = inputs["values"].unsqueeze(1).expand(-1, options.heads, -1, -1)
        return F.scaled_dot_product_attention(inputs["queries"], inputs["keys"], values, is_causal=causal)

    builders: dict[str, Callable[[], Prepared]] = {
        name: functools.partial(prepare_algorithm, name) for name in ALGORITHMS
    }
    builders[ATTENTION] = functools.partial(prepare, ATTENTION, attend)
    names = options.candidates or NAMES
    return Case(sizes, {name: prepare for name, prepare in builders.items() if name in names})
