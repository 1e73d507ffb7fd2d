"""Runs an algorithm on a whole problem: its dtype, what it makes of the table, how many examples at a time."""

import itertools
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lambdanets.ops.geometry import without_future
from lambdanets.ops.position.plan import ALGORITHMS, TAKE_CONTENT, working
from lambdanets.ops.position.problem import Prepared, Problem, Wanted
from lambdanets.ops.position.rates import Rates
from lambdanets.ops.precision import output_dtype, without_autocast, without_tf32_convolutions

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]

# What is kept of tables, in all.
KEPT_BYTES = 256 << 20


def run_forward(
    queries: Tensor, table: Tensor, values: Tensor, content: Tensor | None, problem: Problem, algorithm: str
) -> Tensor:
    """queries (b, h, n, k), table (r_1..r_D, k, u) cropped to the grid, values (b, n, v, u) -> (b, h, n, v).

    content: (b, k, v), a lambda that all positions of an example have beside their own.
    """
    if len(queries) == 0:
        return queries.new_zeros(*queries.shape[:3], problem.value_depth, dtype=output_dtype(queries.dtype))
    module, dtype, rates, some = _set_up(problem, algorithm)
    with without_autocast(queries.device), without_tf32_convolutions(queries.device):
        prepared = _PREPARED.get(table, some, algorithm, dtype, rates)
        parts = []
        for q, v, c in _split(some.batch, queries, values, content):
            q, v, c = q.to(dtype), v.to(dtype), None if c is None else c.to(output_dtype(dtype))
            if algorithm in TAKE_CONTENT:
                parts.append(module.forward(q, prepared, v, some, rates, c))
            else:
                part = module.forward(q, prepared, v, some, rates)
                parts.append(part if c is None else _add_products(part, q, c))
        output = parts[0] if len(parts) == 1 else torch.cat(parts)
        return output.to(output_dtype(queries.dtype))


def run_backward(
    gradient: Tensor,
    queries: Tensor,
    table: Tensor,
    values: Tensor,
    content: Tensor | None,
    problem: Problem,
    algorithm: str,
    wanted: Wanted,
) -> Gradients:
    """The gradients wanted of queries, table, values and content, from that of the output (b, h, n, v)."""
    if len(queries) == 0:
        factors = (queries, table, values, content)
        zeros = (torch.zeros_like(x) if x is not None and of else None for x, of in zip(factors, wanted, strict=True))
        return next(zeros), next(zeros), next(zeros), next(zeros)
    # a backward pass may run inside autocast, whatever the forward pass did
    with without_autocast(queries.device), without_tf32_convolutions(queries.device):
        grad_content = None
        if wanted.content and content is not None:
            grad_content = _sum_of_products(queries.to(gradient.dtype), gradient).to(content.dtype)
        if not any(wanted[:3]):
            return None, None, None, grad_content
        module, dtype, rates, some = _set_up(problem, algorithm)
        grad_queries, grad_values = [], []
        grad_prepared: Prepared | None = None
        prepared = _PREPARED.get(table, some, algorithm, dtype, rates)
        for g, q, v, c in _split(some.batch, gradient, queries, values, content):
            g, q, v = g.to(output_dtype(dtype)), q.to(dtype), v.to(dtype)
            c = None if c is None else c.to(output_dtype(dtype))
            if algorithm in TAKE_CONTENT:
                dq, dp, dv = module.backward(g, q, prepared, v, some, wanted, rates, c)
            else:
                dq, dp, dv = module.backward(g, q, prepared, v, some, wanted, rates)
                if dq is not None and c is not None:
                    dq = _add_products(dq, g, c.mT)
            grad_queries.append(dq)
            grad_values.append(dv)
            if dp is None:
                continue
            if grad_prepared is None:
                # the more parts a narrow sum has, the more it loses
                widened = dtype == torch.bfloat16 and some.batch < problem.batch
                grad_prepared = tuple(part.float() for part in dp) if widened else dp
            else:
                grad_prepared = tuple(a.add_(b) for a, b in zip(grad_prepared, dp, strict=True))
        grad_table = None
        if grad_prepared is not None:
            grad_table = _unfit(module.gradient_of_table(grad_prepared, some, rates), some).to(table.dtype)
        return (
            _joined(grad_queries, queries.dtype) if wanted.queries else None,
            grad_table,
            _joined(grad_values, values.dtype) if wanted.values else None,
            grad_content,
        )


def _set_up(problem: Problem, algorithm: str) -> tuple[Any, torch.dtype, Rates, Problem]:
    """The algorithm's module, the dtype it computes in and the rates for that, the problem of examples at once."""
    module = ALGORITHMS[algorithm]
    dtype, rates = working(problem, algorithm)
    at_once = min(problem.batch, module.examples_at_once(problem, rates))
    return module, dtype, rates, replace(problem, batch=at_once)


def _split(batch: int, *tensors: Tensor | None) -> Iterator[tuple[Any, ...]]:
    parts = [itertools.repeat(None) if x is None else x.split(batch) for x in tensors]
    return zip(*parts, strict=False)


def _add_products(total: Tensor, rows: Tensor, matrices: Tensor) -> Tensor:
    """total (b, h, n, j) + rows (b, h, n, i) matrices (b, i, j), in place if total is contiguous as (b, n, h, j)."""
    joined, factors = (x.transpose(1, 2).flatten(1, 2) for x in (total, rows))
    return joined.baddbmm_(factors, matrices).unflatten(1, (-1, total.shape[1])).transpose(1, 2)


def _sum_of_products(first: Tensor, second: Tensor) -> Tensor:
    """sum over h and n of first (b, h, n, i) second (b, h, n, j): (b, i, j)."""
    one, other = (x.transpose(1, 2).flatten(1, 2) for x in (first, second))
    return torch.bmm(one.mT, other)


def _joined(parts: list[Tensor | None], dtype: torch.dtype) -> Tensor:
    whole = [part for part in parts if part is not None]
    return (whole[0] if len(whole) == 1 else torch.cat(whole)).to(dtype)


def _fit(table: Tensor, problem: Problem) -> Tensor:
    """The table cropped to the grid as the problem has it: without the future where it is causal."""
    if not problem.causal:
        return table
    return without_future(table, len(problem.grid)).narrow(0, 0, problem.before[0] + 1)


def _unfit(gradient: Tensor, problem: Problem) -> Tensor:
    """The adjoint of `_fit`."""
    if not problem.causal:
        return gradient
    future = gradient.new_zeros(problem.before[0], *gradient.shape[1:])
    return without_future(torch.cat([gradient, future]), len(problem.grid))


class _Kept:
    """What algorithms made of tables on CPU, the most recently used of it: for inference, and for backward passes.

    An entry holds a copy of its table and serves only tables equal to it, so that no way of changing a parameter can
    make it stale; comparing costs a hundredth of making. Entries are never changed, so that threads may share them.
    """

    def __init__(self) -> None:
        self._entries: OrderedDict[tuple[Any, ...], tuple[Tensor, Prepared, int]] = OrderedDict()
        self._lock = threading.Lock()
        self._bytes = 0

    def get(self, table: Tensor, problem: Problem, algorithm: str, dtype: torch.dtype, rates: Rates) -> Prepared:
        module, dtype = ALGORITHMS[algorithm], output_dtype(dtype)
        if table.device.type != "cpu" or type(table) not in (Tensor, torch.nn.Parameter):
            return module.prepare(_fit(table, problem).to(dtype), problem, rates)
        key = (table.data_ptr(), algorithm, problem, dtype, rates)
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
        if entry is not None and torch.equal(entry[0], table):
            return entry[1]
        # made of the copy: another thread may change the table meanwhile, and what is made may be a view
        copy = table.detach().clone()
        prepared = module.prepare(_fit(copy, problem).to(dtype), problem, rates)
        size = copy.nbytes + sum(part.nbytes for part in prepared)
        if size <= KEPT_BYTES // 4:
            with self._lock:
                self._bytes += size - self._entries.pop(key, (None, None, 0))[2]
                self._entries[key] = (copy, prepared, size)
                while self._bytes > KEPT_BYTES:
                    self._bytes -= self._entries.popitem(last=False)[1][2]
        return prepared

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self._bytes = 0


_PREPARED = _Kept()
