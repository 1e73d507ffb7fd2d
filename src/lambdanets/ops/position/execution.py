"""Runs an algorithm on a problem: casts to the dtype of the algorithm, caches prepared tables, splits the batch.

If an algorithm chosen by "auto" raises, another one may replace it (`Algorithm.exclude_after_error`). For example, a
fused kernel that passed its self-test may still need too much shared memory, or fail to compile, at another shape; it
then raises before it computes anything. An algorithm chosen by the caller is never replaced.
"""

import itertools
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

from lambdanets.ops.geometry import mask_future
from lambdanets.ops.position.algorithm import BoundAlgorithm
from lambdanets.ops.position.plan import ALGORITHMS, Plan, bind, make_plan
from lambdanets.ops.position.problem import Factors, NeedsGrad, Operands, Prepared, Problem
from lambdanets.ops.precision import output_dtype, without_autocast, without_tf32_convolutions

# Gradients of queries, table, values and content; None if not needed.
FactorGradients = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]

# Limit on the total size of cached tables.
CACHE_BYTES = 256 << 20


_Result = TypeVar("_Result")


def planned_forward(factors: Factors, plan: Plan) -> Tensor:
    """Call `run_forward` with the algorithm chosen for the forward pass."""
    return _run_planned(lambda algorithm: run_forward(*factors, plan.problem, algorithm), plan, "forward")


def planned_backward(grad_output: Tensor, factors: Factors, plan: Plan, needs_grad: NeedsGrad) -> FactorGradients:
    """Call `run_backward` with the algorithm chosen for the backward pass."""

    def run(algorithm: str) -> FactorGradients:
        return run_backward(grad_output, *factors, plan.problem, algorithm, needs_grad)

    return _run_planned(run, plan, "backward")


def _run_planned(run: Callable[[str], _Result], plan: Plan, direction: str) -> _Result:
    algorithm = plan.chosen if direction == "forward" else plan.backward
    try:
        return run(algorithm)
    except torch.OutOfMemoryError:  # other algorithms would need more memory
        raise
    except Exception as error:
        if not plan.automatic or not ALGORITHMS[algorithm].exclude_after_error(plan.problem, direction, error):
            raise
    plan = make_plan(plan.problem)
    return run(plan.chosen if direction == "forward" else plan.backward)


def run_forward(
    queries: Tensor, table: Tensor, values: Tensor, content: Tensor | None, problem: Problem, algorithm: str
) -> Tensor:
    """Compute the output (b, h, n, v).

    queries: (b, h, n, k). table: (r_1..r_D, k, u), cropped to the grid. values: (b, n, v, u). content: (b, k, v), a
    lambda shared by all positions of an example, or None.
    """
    if len(queries) == 0:
        return queries.new_zeros(*queries.shape[:3], problem.value_depth, dtype=output_dtype(queries.dtype))
    bound, dtype = bind(problem, algorithm)
    with without_autocast(queries.device), without_tf32_convolutions(queries.device):
        prepared = prepared_tables.get(table, bound, output_dtype(dtype))
        outputs = [
            bound.forward(_operands(dtype, q, prepared, v, c))
            for q, v, c in _split_batch(bound.problem.batch, queries, values, content)
        ]
        output = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
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
    """Compute the needed gradients of queries, table, values and content from grad_output (b, h, n, v)."""
    if len(queries) == 0:
        factors = zip((queries, table, values, content), needs_grad, strict=True)
        zeros = (torch.zeros_like(x) if x is not None and needed else None for x, needed in factors)
        return next(zeros), next(zeros), next(zeros), next(zeros)
    # The backward pass may run inside autocast even if the forward pass did not.
    with without_autocast(queries.device), without_tf32_convolutions(queries.device):
        grad_content = None
        if needs_grad.content and content is not None:
            grad_content = _sum_outer_products(queries.to(grad_output.dtype), grad_output).to(content.dtype)
        if not any(needs_grad[:3]):
            return None, None, None, grad_content
        bound, dtype = bind(problem, algorithm)
        max_batch, result_dtype = bound.problem.batch, output_dtype(dtype)
        grad_queries, grad_values = [], []
        grad_prepared: Prepared | None = None
        prepared = prepared_tables.get(table, bound, result_dtype)
        for g, q, v, c in _split_batch(max_batch, grad_output, queries, values, content):
            grad_q, grad_p, grad_v = bound.backward(g.to(result_dtype), _operands(dtype, q, prepared, v, c), needs_grad)
            grad_queries.append(grad_q)
            grad_values.append(grad_v)
            if grad_p is None:
                continue
            if grad_prepared is None:
                # Accumulating several calls in bfloat16 would lose precision.
                use_float32 = dtype == torch.bfloat16 and max_batch < problem.batch
                grad_prepared = tuple(x.float() for x in grad_p) if use_float32 else grad_p
            else:
                grad_prepared = tuple(a.add_(b) for a, b in zip(grad_prepared, grad_p, strict=True))
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


def _split_batch(size: int, *tensors: Tensor | None) -> Iterator[tuple[Any, ...]]:
    chunks = [itertools.repeat(None) if x is None else x.split(size) for x in tensors]
    return zip(*chunks, strict=False)


def _sum_outer_products(first: Tensor, second: Tensor) -> Tensor:
    """Sum the outer products of first (b, h, n, i) and second (b, h, n, j) over h and n, which gives (b, i, j)."""
    first, second = (x.transpose(1, 2).flatten(1, 2) for x in (first, second))
    return torch.bmm(first.mT, second)


def _concatenate(tensors: list[Tensor | None], dtype: torch.dtype) -> Tensor:
    present = [x for x in tensors if x is not None]
    return (present[0] if len(present) == 1 else torch.cat(present)).to(dtype)


def _drop_future_offsets(table: Tensor, problem: Problem) -> Tensor:
    """For causal problems, set offsets after 0 to zero and remove the rows that contain only such offsets."""
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
    """LRU cache of the results of `BoundAlgorithm.prepare` for tables on CPU, for inference and for backward passes.

    An entry contains a copy of its table and is used only for equal tables, so it cannot become stale when a parameter
    changes. The comparison takes about 1% of the time of `prepare`. Entries are immutable and shared by threads.
    """

    def __init__(self) -> None:
        self._entries: OrderedDict[tuple[int, BoundAlgorithm, torch.dtype], tuple[Tensor, Prepared, int]] = (
            OrderedDict()
        )
        self._lock = threading.Lock()
        self.nbytes = 0

    def replace_lock(self) -> None:
        """Replace the lock, in a child process after a fork."""
        self._lock = threading.Lock()

    def get(self, table: Tensor, bound: BoundAlgorithm, dtype: torch.dtype) -> Prepared:
        if table.device.type != "cpu" or type(table) not in (Tensor, torch.nn.Parameter):
            return bound.prepare(_drop_future_offsets(table, bound.problem).to(dtype))
        key = (table.data_ptr(), bound, dtype)
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
        if entry is not None and torch.equal(entry[0], table):
            return entry[1]
        # Prepare from the copy, because another thread may change the table, and `prepare` may return a view.
        copy = table.detach().clone()
        prepared = bound.prepare(_drop_future_offsets(copy, bound.problem).to(dtype))
        size = copy.nbytes + sum(x.nbytes for x in prepared)
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
if hasattr(os, "register_at_fork"):  # another thread may hold the lock during a fork
    os.register_at_fork(after_in_child=prepared_tables.replace_lock)
