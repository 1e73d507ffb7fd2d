"""Benchmark of time and memory against the number of positions: algorithms of the position term, and attention."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lambdanets.device import free_memory
from lambdanets.ops import position_interaction
from lambdanets.ops.position.algorithm import Problem
from lambdanets.ops.position.choose import ALGORITHMS, choose
from lambdanets_lab.benchmark import attention
from lambdanets_lab.benchmark.layer import check_memory_limit, select
from lambdanets_lab.benchmark.measurement import Case, Prepared, Row
from lambdanets_lab.benchmark.options import Scaling
from lambdanets_lab.benchmark.peers import Skipped
from lambdanets_lab.timing import summarize

ATTENTION = "sdpa"
NAMES = [*ALGORITHMS, ATTENTION]

# Memory of forward and backward relative to the forward pass, to predict whether the memory limit is exceeded.
_BACKWARD_MEMORY_FACTOR = 3


class Inputs(NamedTuple):
    """Queries (b, h, n, k), keys for attention, table of a global scope (r_1..r_D, k), and values (b, n, v)."""

    queries: Tensor
    keys: Tensor
    table: Tensor
    values: Tensor


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
    dtype = getattr(torch, options.dtype)
    training = phase == "training"
    n = math.prod(grid)
    setting = "causal sequence" if causal else "square map"
    radius = tuple(side - 1 for side in grid)
    problem = Problem(
        batch=options.batch_size,
        heads=options.heads,
        grid=grid,
        query_depth=options.query_depth,
        value_depth=options.value_depth,
        intra_depth=1,
        before=radius,
        after=(0, *radius[1:]) if causal else radius,
        causal=causal,
        dtype=dtype,
        device=device.type,
    )
    plan = choose(problem)
    sizes = {"setting": setting, "n": n, "pass": phase, "auto": plan.algorithm}

    @functools.cache
    def inputs() -> tuple[Inputs, Tensor]:
        """The inputs, and the gradient of the output."""
        torch.manual_seed(options.seed)
        shape = (options.batch_size, options.heads, n)
        queries, keys = torch.randn(2, *shape, options.query_depth)
        table = torch.randn(*(2 * side - 1 for side in grid), options.query_depth)
        values = torch.randn(options.batch_size, n, options.value_depth)
        leaves = (x.to(device, dtype, copy=True).requires_grad_(training) for x in (queries, keys, table, values))
        return Inputs(*leaves), torch.randn(*shape, options.value_depth).to(device, dtype)

    def prepare(function: Callable[[Inputs], Tensor]) -> Prepared:
        leaves, grad_output = inputs()

        def release() -> None:
            for leaf in leaves:
                leaf.grad = None

        def run() -> None:
            release()
            output = function(leaves)
            if training:
                output.backward(grad_output)

        return Prepared(run, release)

    def check_limits(candidate: str, needed_bytes: float) -> None:
        free = free_memory(device) / 2 if options.memory is None else options.memory * 2**30
        check_memory_limit(needed_bytes, free)
        smaller_sizes = [row for row in rows if row.candidate == candidate and row.seconds]
        smaller_sizes = [row for row in smaller_sizes if row.sizes["setting"] == setting and row.sizes["pass"] == phase]
        if smaller_sizes and (seconds := summarize(smaller_sizes[-1].seconds).median) > options.seconds / 4:
            n = smaller_sizes[-1].sizes["n"]
            raise Skipped(f"takes {seconds:.1f} s for n = {n}, more than a quarter of --seconds {options.seconds:g}")

    def prepare_algorithm(candidate: str) -> Prepared:
        cost = plan.costs[candidate]
        if cost is None:
            raise Skipped(plan.notes[candidate])
        needed_bytes = cost.workspace_bytes * (_BACKWARD_MEMORY_FACTOR if training else 1)
        check_limits(candidate, needed_bytes)
        run = functools.partial(position_interaction, grid=grid, causal=causal, algorithm=candidate)
        return prepare(lambda i: run(i.queries, i.table, i.values))

    def prepare_attention() -> Prepared:
        needed_bytes = attention.estimate_bytes(options.batch_size, options.heads, n, dtype.itemsize, training=training)
        check_limits(ATTENTION, needed_bytes)
        table = _first_heads(inputs()[0].table, options.heads)
        make_bias = attention.RelativeBias(table, grid, causal=causal)
        biases = None if training else make_bias(table.detach())

        def run(i: Inputs) -> Tensor:
            values = i.values.unsqueeze(1).expand(-1, options.heads, -1, -1)
            # the indices and, in inference, the bias matrix are computed before timing
            bias = make_bias(_first_heads(i.table, options.heads)) if biases is None else biases
            return F.scaled_dot_product_attention(i.queries, i.keys, values, attn_mask=bias)

        return prepare(run)

    builders: dict[str, Callable[[], Prepared]] = {
        name: functools.partial(prepare_algorithm, name) for name in ALGORITHMS
    }
    builders[ATTENTION] = prepare_attention
    return Case(sizes, select(builders, options.candidates))


def _first_heads(table: Tensor, heads: int) -> Tensor:
    """Return the first h of the table's k channels as attention biases, (h, r_1..r_D)."""
    return table[..., :heads].movedim(-1, 0)
