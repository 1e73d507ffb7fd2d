"""Runs an algorithm on a problem: casts to its dtype, caches prepared tables, splits the batch."""

import itertools
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from lambdanets.ops.geometry import mask_future
from lambdanets.ops.position.algorithm import BoundAlgorithm
from lambdanets.ops.position.choose import Plan, bind
from lambdanets.ops.position.problem import Factors, NeedsGrad, Operands, Prepared, Problem
from lambdanets.ops.precision import output_dtype, without_autocast

# Gradients of queries, table, values and content; None if not needed.
FactorGradients = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]

# Limit on the total size of cached tables.
CACHE_BYTES = 256 << 20


def planned_forward(factors: Factors, plan: Plan) -> Tensor:
    """Compute the output (b, h, n, v).

    queries: (b, h, n, k). table: (r_1..r_D, k, u), cropped to the grid. values: (b, n, v, u).
    content: (b, k, v), a lambda shared by all positions of an example, or None.
    """
    queries, table, values, content = factors
    if len(queries) == 0:
        shape = (*queries.shape[:3], plan.problem.value_depth)
        return queries.new_zeros(shape, dtype=output_dtype(queries.dtype))
    bound = bind(plan.problem, plan.algorithm)
    with without_autocast(queries.device):
        prepared = prepared_tables.get(table, bound)
        outputs = [
            bound.forward(_operands(bound.dtype, q, prepared, v, c))
            for q, v, c in _split_batch(bound.problem.batch, queries, values, content)
        ]
        output = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        return output.to(output_dtype(queries.dtype))


def planned_backward(grad_output: Tensor, factors: Factors, plan: Plan, needs: NeedsGrad) -> FactorGradients:
    """Compute the needed gradients of the factors from grad_output (b, h, n, v)."""
    queries, table, values, content = factors
    if len(queries) == 0:
        pairs = zip(factors, needs, strict=True)
        zeros = [torch.zeros_like(x) if x is not None and needed else None for x, needed in pairs]
        return zeros[0], zeros[1], zeros[2], zeros[3]
    needs = needs._replace(content=needs.content and content is not None)
    if not any(needs):
        return None, None, None, None
    bound = bind(plan.problem, plan.algorithm)
    grads: list[list[Tensor]] = [[], [], []]  # of queries, values and content, by call
    grad_prepared: Prepared | None = None
    # The backward pass may run inside autocast even if the forward pass did not.
    with without_autocast(queries.device):
        prepared = prepared_tables.get(table, bound)
        calls = _split_batch(bound.problem.batch, grad_output, queries, values, content)
        for g, q, v, c in calls:
            operands = _operands(bound.dtype, q, prepared, v, c)
            grad_q, grad_p, grad_v, grad_c = bound.backward(g.to(bound.dtype), operands, needs)
            for total, part in zip(grads, (grad_q, grad_v, grad_c), strict=True):
                if part is not None:
                    total.append(part)
            if grad_p is None:
                continue
            if grad_prepared is None:
                # Accumulating several calls in bfloat16 would lose precision.
                several = bound.problem.batch < len(queries)
                grad_prepared = tuple(_widen(x) for x in grad_p) if several else grad_p
            else:
                added = zip(grad_prepared, grad_p, strict=True)
                grad_prepared = tuple(a.add_(b) for a, b in added)
        grad_table = None
        if grad_prepared is not None:
            grad_table = _restore_future_offsets(bound.grad_table(grad_prepared), plan.problem)
            grad_table = grad_table.to(table.dtype)
    grad_queries, grad_values, grad_content = (
        None if not x else (x[0] if len(x) == 1 else torch.cat(x)) for x in grads
    )
    return (
        None if grad_queries is None else grad_queries.to(queries.dtype),
        grad_table,
        None if grad_values is None else grad_values.to(values.dtype),
        None if grad_content is None or content is None else grad_content.to(content.dtype),
    )


def _widen(x: Tensor) -> Tensor:
    return x.float() if x.dtype == torch.bfloat16 else x


def _operands(
    dtype: torch.dtype, queries: Tensor, prepared: Prepared, values: Tensor, content: Tensor | None
) -> Operands:
    content = None if content is None else content.to(dtype)
    return Operands(queries.to(dtype), prepared, values.to(dtype), content)


def _split_batch(size: int, *tensors: Tensor | None) -> Iterator[tuple[Any, ...]]:
    chunks = [itertools.repeat(None) if x is None else x.split(size) for x in tensors]
    return zip(*chunks, strict=False)


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
        self._entries = OrderedDict[tuple[int, BoundAlgorithm], tuple[Tensor, Prepared, int]]()
        self._lock = threading.Lock()
        self.nbytes = 0

    def replace_lock(self) -> None:
        """Replace the lock, in a child process after a fork."""
        self._lock = threading.Lock()

    def get(self, table: Tensor, bound: BoundAlgorithm) -> Prepared:
        if table.device.type != "cpu" or type(table) not in (Tensor, torch.nn.Parameter):
            return bound.prepare(_drop_future_offsets(table, bound.problem).to(bound.dtype))
        key = (table.data_ptr(), bound)
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
        if entry is not None and torch.equal(entry[0], table):
            return entry[1]
        # Prepare from the copy, because another thread may change the table, and `prepare` may return a view.
        copy = table.detach().clone()
        prepared = bound.prepare(_drop_future_offsets(copy, bound.problem).to(bound.dtype))
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
