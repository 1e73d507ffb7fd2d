"""Benchmark of time and memory against the number of positions: algorithms of the position term, and attention."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lambdanets.device import free_memory
from lambdanets.ops import position_interaction
from lambdanets.ops.position.algorithm import Problem
from lambdanets.ops.position.choose import ALGORITHMS, choose
from lambdanets_lab.benchmark import attention
from lambdanets_lab.benchmark.layer import check_memory_limit, select_candidates
from lambdanets_lab.benchmark.measurement import Case, Prepared, Row
from lambdanets_lab.benchmark.options import Scaling
from lambdanets_lab.benchmark.peers import Skipped
from lambdanets_lab.benchmark.reference import TOLERANCE, Error, Expected
from lambdanets_lab.timing import summarize

ATTENTION = "sdpa"
NAMES = [*ALGORITHMS, ATTENTION]

# Number of query positions whose outputs and query gradients are verified against the exact sum over all positions.
NUM_CHECKED_POSITIONS = 32
# Memory of forward and backward relative to the forward pass, to predict whether the memory limit is exceeded.
_BACKWARD_MEMORY_FACTOR = 3


@dataclass(frozen=True)
class Inputs:
    """Queries (b, h, n, k), table (r_1..r_D, k) of a global scope, values (b, n, v), gradient of the output.

    Only attention uses the keys (b, h, n, k).
    """

    queries: Tensor
    keys: Tensor
    table: Tensor
    values: Tensor
    grad_output: Tensor | None


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
    def inputs() -> Inputs:
        torch.manual_seed(options.seed)
        shape = (options.batch_size, options.heads, n)
        queries, keys = torch.randn(2, *shape, options.query_depth)
        table = torch.randn(*(2 * side - 1 for side in grid), options.query_depth)
        values = torch.randn(options.batch_size, n, options.value_depth)
        grad_output = torch.randn(*shape, options.value_depth).to(device, dtype) if training else None
        queries, keys, table, values = (
            tensor.to(device, dtype, copy=True).requires_grad_(training) for tensor in (queries, keys, table, values)
        )
        return Inputs(queries, keys, table, values, grad_output)

    @functools.cache
    def checked_positions() -> Tensor:
        order = torch.randperm(n, generator=torch.Generator().manual_seed(options.seed))
        return order[:NUM_CHECKED_POSITIONS].sort().values.to(device)

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
        expected = functools.partial(_expected_lambda, grid, causal, checked_positions)
        return _prepare(inputs(), lambda i: run(i.queries, i.table, i.values), expected, checked_positions)

    def prepare_attention() -> Prepared:
        needed_bytes = attention.estimate_bytes(options.batch_size, options.heads, n, dtype.itemsize, training=training)
        check_limits(ATTENTION, needed_bytes)
        table = _first_heads(inputs().table, options.heads)
        make_bias = attention.RelativeBias(table, grid, causal=causal)
        biases = None if training else make_bias(table.detach())

        def run(i: Inputs) -> Tensor:
            values = i.values.unsqueeze(1).expand(-1, options.heads, -1, -1)
            # the indices and, in inference, the bias matrix are computed before timing
            bias = make_bias(_first_heads(i.table, options.heads)) if biases is None else biases
            return F.scaled_dot_product_attention(i.queries, i.keys, values, attn_mask=bias)

        expected = functools.partial(_expected_attention, grid, causal, checked_positions, options.heads)
        return _prepare(inputs(), run, expected, checked_positions)

    builders: dict[str, Callable[[], Prepared]] = {
        name: functools.partial(prepare_algorithm, name) for name in ALGORITHMS
    }
    builders[ATTENTION] = prepare_attention
    return Case(sizes, select_candidates(builders, options.candidates))


def _prepare(
    inputs: Inputs,
    run: Callable[[Inputs], Tensor],
    expected: Callable[[Inputs], Expected],
    checked_positions: Callable[[], Tensor],
) -> Prepared:
    leaves = (inputs.queries, inputs.keys, inputs.table, inputs.values)
    outputs: list[Tensor] = []

    def release() -> None:
        outputs.clear()
        for leaf in leaves:
            leaf.grad = None

    def run_once() -> None:
        release()
        output = run(inputs)
        if inputs.grad_output is not None:
            output.backward(inputs.grad_output)
        outputs.append(output.detach())

    def errors() -> dict[str, Error]:
        actual = {"output": outputs[0][:, :, checked_positions()]}
        if inputs.grad_output is not None:
            assert inputs.queries.grad is not None
            actual["query gradient"] = inputs.queries.grad[:, :, checked_positions()]
        return expected(inputs).check(actual)

    return Prepared(run_once, errors, release)


def _expected_lambda(
    grid: tuple[int, ...], causal: bool, checked_positions: Callable[[], Tensor], inputs: Inputs
) -> Expected:
    """Compute y[n] = sum_m (q[n] . R[m - n]) v[m] at the checked positions."""
    table = inputs.table.detach().double().movedim(-1, 0)
    values = inputs.values.detach().double()

    def compute_output(queries: Tensor) -> Tensor:
        pairs = [_row_of_table(table, grid, int(n), causal) for n in checked_positions()]  # (k, m) each
        scores = torch.stack([queries[:, :, i] @ pair for i, pair in enumerate(pairs)], dim=2)
        return torch.einsum("bhnm,bmv->bhnv", scores, values)

    return _expected_at_checked(compute_output, inputs, checked_positions())


def _expected_attention(
    grid: tuple[int, ...], causal: bool, checked_positions: Callable[[], Tensor], heads: int, inputs: Inputs
) -> Expected:
    """Compute softmax_m(q[n] . k[m] / sqrt(k) + B[m - n]) v[m] at the checked positions."""
    table = _first_heads(inputs.table, heads).detach().double()
    keys, values = inputs.keys.detach().double(), inputs.values.detach().double()

    def compute_output(queries: Tensor) -> Tensor:
        bias = torch.stack([_row_of_table(table, grid, int(n), causal, -torch.inf) for n in checked_positions()], dim=1)
        scores = queries @ keys.transpose(2, 3) * queries.shape[-1] ** -0.5 + bias
        return torch.einsum("bhnm,bmv->bhnv", scores.softmax(dim=-1), values)

    return _expected_at_checked(compute_output, inputs, checked_positions())


def _expected_at_checked(
    compute_output: Callable[[Tensor], Tensor], inputs: Inputs, checked_positions: Tensor
) -> Expected:
    """Compute the output and, in training, the query gradient at the checked positions."""
    queries = inputs.queries.detach()[:, :, checked_positions].double().requires_grad_(inputs.grad_output is not None)
    output = compute_output(queries)
    tensors = {"output": output.detach()}
    if inputs.grad_output is not None:
        tensors["query gradient"] = torch.autograd.grad(
            output, queries, inputs.grad_output[:, :, checked_positions].double()
        )[0]
    return Expected(tensors, TOLERANCE[inputs.values.dtype])


def _row_of_table(table: Tensor, grid: tuple[int, ...], n: int, causal: bool, fill: float = 0.0) -> Tensor:
    """Return the embeddings R[m - n], (c, m), of query position n at all context positions m.

    table: R, (c, 2 S_1 - 1, .., 2 S_D - 1). causal: set entries with m > n to `fill`.
    """
    positions = torch.cartesian_prod(*(torch.arange(side) for side in grid)).view(-1, len(grid))
    offsets = positions - positions[n] + torch.tensor(grid) - 1
    indices: list[Any] = [slice(None), *offsets.to(table.device).unbind(1)]
    row = table[tuple(indices)]
    return row.index_fill(1, torch.arange(n + 1, row.shape[1], device=row.device), fill) if causal else row


def _first_heads(table: Tensor, heads: int) -> Tensor:
    """Return the first h of the table's k channels as attention biases, (h, r_1..r_D)."""
    return table[..., :heads].movedim(-1, 0)
