"""Runs an algorithm on a problem: casts to its dtype, caches prepared tables, splits the batch.

An algorithm that "auto" chose may be replaced when it raises (`Algorithm.exclude_after_error`): a fused kernel that
passed its self-test may still need too much shared memory, or fail to compile, at another shape. It then raises before
anything is computed. An algorithm that the caller chose is never replaced.
"""

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

from lambdanets.ops.geometry import mask_future
from lambdanets.ops.position.algorithm import Bound
from lambdanets.ops.position.plan import ALGORITHMS, Plan, bind, make_plan
from lambdanets.ops.position.problem import Factors, NeedsGrad, Operands, Prepared, Problem
from lambdanets.ops.precision import output_dtype, without_autocast, without_tf32_convolutions

# Gradients of queries, table, values and content; None where not needed.
FactorGradients = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]

# Limit on all cached tables.
CACHE_BYTES = 256 << 20


_Result = TypeVar("_Result")


def planned_forward(factors: Factors, plan: Plan) -> Tensor:
    """`run_forward` with the algorithm that the plan chose for the forward pass."""
    return _run_planned(lambda algorithm: run_forward(*factors, plan.problem, algorithm), plan, "forward")


def planned_backward(grad_output: Tensor, factors: Factors, plan: Plan, needs_grad: NeedsGrad) -> FactorGradients:
    """`run_backward` with the algorithm that the plan chose for the backward pass."""

    def run(algorithm: str) -> FactorGradients:
        return run_backward(grad_output, *factors, plan.problem, algorithm, needs_grad)

    return _run_planned(run, plan, "backward")


def _run_planned(run: Callable[[str], _Result], plan: Plan, direction: str) -> _Result:
    algorithm = plan.chosen if direction == "forward" else plan.backward
    try:
        return run(algorithm)
    except torch.OutOfMemoryError:  # other algorithms need more memory
        raise
    except Exception as error:
        if not plan.automatic or not ALGORITHMS[algorithm].exclude_after_error(plan.problem, direction, error):
            raise
    plan = make_plan(plan.problem)
    return run(plan.chosen if direction == "forward" else plan.backward)


def run_forward(
    queries: Tensor, table: Tensor, values: Tensor, content: Tensor | None, problem: Problem, algorithm: str
) -> Tensor:
    """queries (b, h, n, k), table (r_1..r_D, k, u) cropped to the grid, values (b, n, v, u) -> (b, h, n, v).

    content: (b, k, v), a lambda shared by all positions of an example.
    """
    if len(queries) == 0:
        return queries.new_zeros(*queries.shape[:3], problem.value_depth, dtype=output_dtype(queries.dtype))
    bound, dtype = bind(problem, algorithm)
    with without_autocast(queries.device), without_tf32_convolutions(queries.device):
        prepared = prepared_tables.get(table, bound, output_dtype(dtype))
        parts = [
            bound.forward(_operands(dtype, q, prepared, v, c))
            for q, v, c in _split(bound.problem.batch, queries, values, content)
        ]
        output = parts[0] if len(parts) == 1 else torch.cat(parts)
        return output.to(output_dtype(queries.dtype))


def run_backward(
    grad_output: Tensor,
    queries: Tensor,
    table: Tensor,
    values: Tensor,
    content: Tensor | None,
    problem: Problem,
    algorithm: str,
    needs_grad: NeedsGrad,
) -> FactorGradients:
    """The needed gradients of queries, table, values and content from grad_output (b, h, n, v)."""
    if len(queries) == 0:
        factors = zip((queries, table, values, content), needs_grad, strict=True)
        zeros = (torch.zeros_like(x) if x is not None and needed else None for x, needed in factors)
        return next(zeros), next(zeros), next(zeros), next(zeros)
    # the backward pass may run inside autocast even if the forward pass did not
    with without_autocast(queries.device), without_tf32_convolutions(queries.device):
        grad_content = None
        if needs_grad.content and content is not None:
            grad_content = _sum_outer_products(queries.to(grad_output.dtype), grad_output).to(content.dtype)
        if not any(needs_grad[:3]):
            return None, None, None, grad_content
        bound, dtype = bind(problem, algorithm)
        at_once, wide = bound.problem.batch, output_dtype(dtype)
        grad_queries, grad_values = [], []
        grad_prepared: Prepared | None = None
        prepared = prepared_tables.get(table, bound, wide)
        for g, q, v, c in _split(at_once, grad_output, queries, values, content):
            dq, dp, dv = bound.backward(g.to(wide), _operands(dtype, q, prepared, v, c), needs_grad)
            grad_queries.append(dq)
            grad_values.append(dv)
            if dp is None:
                continue
            if grad_prepared is None:
                # summing many parts in bfloat16 loses precision
                is_narrow = dtype == torch.bfloat16 and at_once < problem.batch
                grad_prepared = tuple(part.float() for part in dp) if is_narrow else dp
            else:
                grad_prepared = tuple(a.add_(b) for a, b in zip(grad_prepared, dp, strict=True))
        grad_table = None
        if grad_prepared is not None:
            grad_table = _restore_future_offsets(bound.grad_table(grad_prepared), problem).to(table.dtype)
        return (
            _concatenate(grad_queries, queries.dtype) if needs_grad.queries else None,
            grad_table,
            _concatenate(grad_values, values.dtype) if needs_grad.values else None,
            grad_content,
        )


def _operands(dtype: torch.dtype, queries: Tensor, prepared: Prepared, values: Tensor, content: Any) -> Operands:
    content = None if content is None else content.to(output_dtype(dtype))
    return Operands(queries.to(dtype), prepared, values.to(dtype), content)


def _split(batch: int, *tensors: Tensor | None) -> Iterator[tuple[Any, ...]]:
    parts = [itertools.repeat(None) if x is None else x.split(batch) for x in tensors]
    return zip(*parts, strict=False)


def _sum_outer_products(first: Tensor, second: Tensor) -> Tensor:
    """Outer products of first (b, h, n, i) and second (b, h, n, j) summed over h and n: (b, i, j)."""
    first, second = (x.transpose(1, 2).flatten(1, 2) for x in (first, second))
    return torch.bmm(first.mT, second)


def _concatenate(parts: list[Tensor | None], dtype: torch.dtype) -> Tensor:
    tensors = [part for part in parts if part is not None]
    return (tensors[0] if len(tensors) == 1 else torch.cat(tensors)).to(dtype)


def _drop_future_offsets(table: Tensor, problem: Problem) -> Tensor:
    """For causal problems, zeros at offsets after 0, and without the rows that hold only such offsets."""
    if not problem.causal:
        return table
    return mask_future(table, len(problem.grid)).narrow(0, 0, problem.before[0] + 1)


def _restore_future_offsets(grad_table: Tensor, problem: Problem) -> Tensor:
    """The adjoint of `_drop_future_offsets`."""
    if not problem.causal:
        return grad_table
    future = grad_table.new_zeros(problem.before[0], *grad_table.shape[1:])
    return mask_future(torch.cat([grad_table, future]), len(problem.grid))


class PreparedTables:
    """LRU cache of what algorithms prepared of tables on CPU, for inference and for backward passes.

    An entry holds a copy of its table and is used only for tables equal to it, so that no change of a parameter can
    make it stale; comparing costs a hundredth of preparing. Entries are immutable and shared by threads.
    """

    def __init__(self) -> None:
        self._entries: OrderedDict[tuple[int, Bound, torch.dtype], tuple[Tensor, Prepared, int]] = OrderedDict()
        self._lock = threading.Lock()
        self.nbytes = 0

    def get(self, table: Tensor, bound: Bound, dtype: torch.dtype) -> Prepared:
        if table.device.type != "cpu" or type(table) not in (Tensor, torch.nn.Parameter):
            return bound.prepare(_drop_future_offsets(table, bound.problem).to(dtype))
        key = (table.data_ptr(), bound, dtype)
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
        if entry is not None and torch.equal(entry[0], table):
            return entry[1]
        # prepared from the copy: another thread may change the table meanwhile, and `prepare` may return a view
        copy = table.detach().clone()
        prepared = bound.prepare(_drop_future_offsets(copy, bound.problem).to(dtype))
        size = copy.nbytes + sum(part.nbytes for part in prepared)
        if size <= CACHE_BYTES // 4:
            with self._lock:
                self.nbytes += size - self._entries.pop(key, (None, None, 0))[2]
                self._entries[key] = (copy, prepared, size)
                while self.nbytes > CACHE_BYTES:
                    self.nbytes -= self._entries.popitem(last=False)[1][2]
        return prepared

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self.nbytes = 0


prepared_tables = PreparedTables()
