"""Fused kernels, which materialize neither embeddings of pairs nor lambdas in global memory, forward or backward.

There are two orders of contraction. The query order computes logits S = q E and then
y = S V, with h (k + v) multiply-adds per pair (n, m). The lambda order computes lambda = E V in registers and then
y = q lambda, or dq = g lambda, with k v multiply-adds per pair. The table's gradient is in either order, that of the
values in the query order. Sums are in float32; an intermediate result in registers or shared memory between two
products is rounded to the input dtype.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from types import EllipsisType

import torch
import torch.nn.functional as F
from torch import Tensor

from lambdanets.ops.position.algorithm import Algorithm, Cost, Gradients, NeedsGrad, Prepared, Problem, grad_of_content
from lambdanets.ops.position.fused import launches
from lambdanets.ops.position.fused.device import KernelDevice, kernel_device
from lambdanets.ops.position.fused.tiles import K, kernels_of_order, max_value_channels
from lambdanets.ops.precision import output_dtype

MAX_HEADS = 16
MAX_TILE = 64
_CHANNELS_PER_HEAD = 8  # up to which the lambda order is faster
_MAX_INDEX = 2**31  # positions and table elements are indexed with 32 bits


class Fused(Algorithm):
    name = "fused"

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem._replace(dtype=output_dtype(problem.dtype)))
        self.dtype = self.problem.dtype
        self._copies = 4 * problem.batch * problem.num_positions if problem.dtype == torch.float16 else 0

    @classmethod
    def unsupported(cls, problem: Problem) -> str:
        p = problem
        table_elements = K * math.prod(side + 2 * MAX_TILE for side in p.scope)
        if max(p.num_positions, table_elements) >= _MAX_INDEX:
            return "supports tables of fewer than 2^27 offsets"
        if len(p.grid) > 2 or p.heads > MAX_HEADS or p.dtype.itemsize > 4:
            return "supports grids with 1 or 2 dimensions, at most 16 heads and dtypes of at most 32 bits"
        if kernel_device(p.device) is None:
            return "is for CUDA devices of compute capability 8.0 or newer, with Triton installed"
        return ""

    def cost(self) -> Cost:
        problem, device = self.problem, kernel_device(self.problem.device)
        assert device is not None
        pairs = math.prod(
            side * (1 + before + after) - (before * (before + 1) + after * (after + 1)) // 2
            for side, before, after in zip(problem.grid, problem.before, problem.before, strict=True)
        )
        b, n, h = problem.batch, problem.num_positions, problem.heads
        k, v, u = problem.query_depth, problem.value_depth, problem.intra_depth
        itemsize, num_launches = problem.dtype.itemsize, len(list(_launch_slices(problem)))
        # Depths that are not multiples of the vector size are zero-padded, and several launches are added in float32.
        padded = v % (launches.VECTOR_BYTES // itemsize) > 0
        workspace = 4 * math.prod(problem.scope) * K * u * itemsize + self._copies * (h * k + u * v + h * v)
        workspace += 2 * itemsize * b * n * (u * v + h * v) * padded
        workspace += 8 * b * n * (h * k + v) * (num_launches > 1)
        workspace += launches.grad_table_partial_bytes(_symmetric(problem, b), device)
        # No other algorithm is faster on a GPU, whatever the sizes.
        return Cost(b * pairs * h * (k + v) * u, workspace, work=0)

    def fault(self) -> str:
        """The failures of the check of the kernels, which runs on first use."""
        # It runs the kernels, so it imports this module.
        from lambdanets.ops.position.fused.check import get_checks

        device = kernel_device(self.problem.device)
        assert device is not None
        checks = get_checks(device, self.problem.dtype)
        kernels = (*_kernels(self.problem, device), "grad_values", "grad_table")
        return "; ".join(f"{name} {checks[name].reason}" for name in kernels if checks[name].reason)

    def prepare(self, table: Tensor) -> Prepared:
        """Return the table; if causal, zero-padded along the first axis to be symmetric about offset 0."""
        missing = self.problem.before[0] - self.problem.after[0]
        return (F.pad(table, [0, 0] * (table.ndim - 1) + [0, missing]) if missing else table,)

    def grad_table(self, grad_prepared: Prepared) -> Tensor:
        return grad_prepared[0].narrow(0, 0, self.problem.scope[0])

    def forward(self, queries: Tensor, prepared: Prepared, values: Tensor, content: Tensor | None) -> Tensor:
        """Compute the output, contiguous as (b, n, h, v)."""
        symmetric = _symmetric(self.problem, len(values))
        return forward_in_order(self._orders(values)[0], queries, prepared[0], values, symmetric, content)

    def backward(
        self,
        grad_output: Tensor,
        queries: Tensor,
        prepared: Prepared,
        values: Tensor,
        content: Tensor | None,
        needs: NeedsGrad,
    ) -> Gradients:
        symmetric, order = _symmetric(self.problem, len(values)), self._orders(values)[1]
        grad_queries, grad_table, grad_values = gradients(
            order, grad_output, queries, prepared[0], values, symmetric, needs, content
        )
        grad_content = grad_of_content(queries, grad_output) if needs.content else None
        grad_prepared = None if grad_table is None else (grad_table,)
        return grad_queries, grad_prepared, grad_values, grad_content

    def _orders(self, values: Tensor) -> tuple[str, str]:
        device = kernel_device(str(values.device))
        assert device is not None
        return _orders(self.problem, device)


def _symmetric(problem: Problem, batch: int) -> Problem:
    """Return the problem with a symmetric, non-causal table, as `Fused.prepare` returns, and another batch."""
    return problem._replace(batch=batch, after=problem.before, causal=False)


def _orders(problem: Problem, device: KernelDevice) -> tuple[str, str]:
    """Return the orders of the output and of the queries' gradient: the faster ones on an H200.

    The query order takes time for each of the h logits of a pair, the lambda order for each of its
    k v products. The sum of lambdas is the same for output and gradient, so one order is best for
    both. float32 supports only the query order, and the loads of the gradient's lambda order are
    pipelined only for warpgroups.
    """
    channels = min(problem.value_depth, max_value_channels(problem.dtype.itemsize))
    is_lambda = problem.dtype.itemsize == 2 and channels <= _CHANNELS_PER_HEAD * problem.heads
    order = "lambda" if is_lambda else "query"
    return order, order if device.capability[0] in (9, 10) else "query"


def _kernels(problem: Problem, device: KernelDevice) -> tuple[str, str]:
    """Return the kernels of the output and of the queries' gradient."""
    forward, gradient = _orders(problem, device)
    return kernels_of_order(forward)[0], kernels_of_order(gradient)[1]


def forward_in_order(
    order: str, queries: Tensor, table: Tensor, values: Tensor, problem: Problem, content: Tensor | None = None
) -> Tensor:
    """Compute the output; order: "query", or "lambda", which does not support float32."""
    slices = list(_launch_slices(problem))
    dtype = queries.dtype if len(slices) == 1 else torch.float32
    output = _Accumulator((*queries.shape[:3], problem.value_depth), queries.dtype, len(slices))
    with torch.cuda.device_of(values):  # Triton launches on the current device
        for depths, channels, u in slices:
            operands = queries[..., depths], table[..., depths, u], values[:, :, channels, u]
            c = content[:, depths, channels] if content is not None and u == 0 else None
            output.add((..., channels), launches.forward(order, *operands, c, problem, dtype))
    return output.total()


def gradients(
    order: str,
    grad_output: Tensor,
    queries: Tensor,
    table: Tensor,
    values: Tensor,
    problem: Problem,
    needs_grad: NeedsGrad,
    content: Tensor | None = None,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Compute the gradients of queries, table and values in their dtypes; None if not needed.

    order: of the queries' gradient, "query", or "lambda", which does not support float32.
    """
    slices = list(_launch_slices(problem))
    dtype = queries.dtype if len(slices) == 1 else torch.float32
    grad_queries, grad_table, grad_values = (
        _Accumulator(x.shape, x.dtype, len(slices)) for x in (queries, table, values)
    )
    with torch.cuda.device_of(values):
        for depths, channels, u in slices:
            g, q, v = grad_output[..., channels], queries[..., depths], values[:, :, channels, u]
            r = table[..., depths, u]
            if needs_grad.queries:
                c = content[:, depths, channels] if content is not None and u == 0 else None
                grad_queries.add((..., depths), launches.grad_queries(order, g, r, v, c, problem, dtype))
            if needs_grad.table:
                grad_table.add((..., depths, u), launches.grad_table(g, q, v, problem))
            if needs_grad.values:
                grad_values.add((..., channels, u), launches.grad_values(g, q, r, problem, dtype))
    return (
        grad_queries.total() if needs_grad.queries else None,
        grad_table.total() if needs_grad.table else None,
        grad_values.total() if needs_grad.values else None,
    )


def _launch_slices(problem: Problem) -> Iterator[tuple[slice, slice, int]]:
    """Yield slices of query depth and value channels, and the intra-depth index, for each launch."""
    depths = [slice(first, first + K) for first in range(0, problem.query_depth, K)]
    max_channels = max_value_channels(problem.dtype.itemsize)
    channels = [slice(first, first + max_channels) for first in range(0, problem.value_depth, max_channels)]
    return itertools.product(depths, channels, range(problem.intra_depth))


class _Accumulator:
    """Accumulates slices of a tensor over launches, in float32 if there are several."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, num_launches: int) -> None:
        self._shape, self._dtype, self._num_launches = shape, dtype, num_launches
        self._sum: Tensor | None = None

    def add(self, index: tuple[EllipsisType | slice | int, ...], addend: Tensor) -> None:
        if self._num_launches == 1:
            self._sum = addend.reshape(self._shape)
            return
        if self._sum is None:
            self._sum = addend.new_zeros(self._shape, dtype=torch.float32)
        self._sum[index] += addend

    def total(self) -> Tensor:
        assert self._sum is not None
        return self._sum.to(self._dtype)
