"""Fused kernels, which materialize neither embeddings of pairs nor lambdas in global memory, forward or backward.

There are two orders of contraction, chosen by predicted time. The query order computes logits S = q E and then
y = S V, with h (k + v) multiply-adds per pair (n, m). The lambda order computes lambda = E V in registers and then
y = q lambda, or dq = g lambda, with k v multiply-adds per pair. The table's gradient is in either order, that of the
values in the query order. Sums are in float32; an intermediate result in registers or shared memory between two
products is rounded to the input dtype.
"""

import itertools
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from types import EllipsisType

import torch
import torch.nn.functional as F
from torch import Tensor

from lambdanets.errors import KernelWarning
from lambdanets.ops.position.algorithm import Algorithm, BoundAlgorithm, Exclusions, Gradients
from lambdanets.ops.position.fused import launches, prediction, scaling, verification
from lambdanets.ops.position.fused.device import KernelDevice, kernel_device
from lambdanets.ops.position.fused.self_test_process import dtype_name
from lambdanets.ops.position.fused.tiles import K, kernels_of_order, max_value_channels
from lambdanets.ops.position.gpus import GpuSpec, find_gpu_spec
from lambdanets.ops.position.problem import Cost, NeedsGrad, Operands, Prepared, Problem
from lambdanets.ops.position.rates import Rates
from lambdanets.ops.precision import output_dtype

MAX_HEADS = 16
MAX_TILE = 64
_MAX_INDEX = 2**31  # positions and table elements are indexed with 32 bits

# Reasons why "auto" no longer uses the kernels in this process, by problem and "forward" or "backward".
_EXCLUDED: dict[tuple[Problem, str], str] = {}


class Fused(Algorithm):
    name = "fused"
    limits = (
        "supports grids with 1 or 2 dimensions, at most 16 heads, tables of fewer than 2^27 offsets and dtypes of at "
        "most 32 bits, on CUDA devices of compute capability 8.0 or newer with Triton installed"
    )

    def cost(self, problem: Problem, rates: Rates) -> Cost | None:
        unsupported = len(problem.grid) > 2 or problem.heads > MAX_HEADS or problem.dtype.itemsize > 4
        table_elements = K * math.prod(side + 2 * MAX_TILE for side in problem.scope)
        unsupported = unsupported or max(problem.num_positions, table_elements) >= _MAX_INDEX
        device = None if unsupported else kernel_device(problem.device)
        if device is None:
            return None
        pairs = math.prod(
            side * (1 + before + after) - (before * (before + 1) + after * (after + 1)) // 2
            for side, before, after in zip(problem.grid, problem.before, problem.before, strict=True)
        )
        multiply_adds = problem.heads * (problem.query_depth + problem.value_depth)
        operations = 2 * problem.batch * pairs * multiply_adds * problem.intra_depth
        table_copy_elements = 4 * math.prod(problem.scope) * K * problem.intra_depth
        num_launches = len(list(_launch_slices(problem)))
        launch_problem = _problem_per_launch(problem)
        forward, *backward = (
            num_launches * prediction.kernel_seconds(name, launch_problem, device.capability, _gpu_spec(device))
            for name in (*_kernels(problem, device), "grad_values", "grad_table_partial")
        )
        b, n, h, k, v = problem.batch, problem.num_positions, problem.heads, problem.query_depth, problem.value_depth
        itemsize, vec_size = problem.dtype.itemsize, launches.VECTOR_BYTES // problem.dtype.itemsize
        # Depths that are not multiples of the vector size are zero-padded. Several launches are accumulated in float32.
        padding_bytes = itemsize * b * n * (problem.intra_depth * v + h * v) if v % vec_size else 0
        accumulator_bytes_per_channel = 8 * b * n if num_launches > 1 else 0
        copied_bytes, copied_backward_bytes = padding_bytes, 2 * padding_bytes
        num_scaling_calls, num_scaling_calls_backward = 0, 0
        if problem.dtype == torch.float16:
            # maxima of all operands, scales, and scaled copies of all operands except queries and values
            num_scaling_calls, num_scaling_calls_backward = 6, 10
            copied_bytes += 2 * b * n * (h * k + v)
            copied_backward_bytes += 10 * b * n * h * v
        return Cost(
            operations,
            table_copy_elements * itemsize + padding_bytes + accumulator_bytes_per_channel * h * v,
            seconds=forward
            + rates.copy_seconds(copied_bytes / 2)
            + rates.call_overhead(4 * num_launches + num_scaling_calls),
            backward_seconds=sum(backward)
            + rates.copy_seconds(copied_backward_bytes / 2)
            + rates.call_overhead(12 * num_launches + num_scaling_calls_backward),
            backward_workspace_bytes=table_copy_elements * itemsize
            + launches.grad_table_partial_bytes(launch_problem, device)
            + 2 * padding_bytes
            + accumulator_bytes_per_channel * (h * k + v)
            + (2 * b * n * h * v if problem.dtype == torch.float16 else 0),
        )

    def bind(self, problem: Problem, rates: Rates) -> "BoundFused":
        return BoundFused(problem)

    def compute_dtype(self, problem: Problem, rates: Rates) -> torch.dtype:
        return problem.dtype  # float16 operands are scaled by powers of two

    def exclusions(self, problem: Problem) -> Exclusions:
        """Return failures of the self-test, which runs on first use, and of launches in this process."""
        device = kernel_device(problem.device)
        if device is None:
            return Exclusions()
        results = verification.get_results(device, problem.dtype)
        output, queries = _kernels(problem, device)
        forward = _failure_reason(results, [output], problem)
        backward = _failure_reason(results, [queries, "grad_values", "grad_table"], problem)
        if _EXCLUDED:
            forward = _EXCLUDED.get((problem, "forward"), forward)
            backward = _EXCLUDED.get((problem, "backward"), backward)
        return Exclusions(forward, backward)

    def exclude_after_error(self, problem: Problem, direction: str, error: Exception) -> bool:
        """Exclude the kernels from the pass in which they raised, for this problem only, and warn once."""
        if (problem, direction) not in _EXCLUDED:
            reason = f"the {direction} pass raised {' '.join(f'{type(error).__name__}: {error}'.split())[:500]}"
            _EXCLUDED[problem, direction] = reason
            device = kernel_device(problem.device)
            warnings.warn(
                f"A slower exact algorithm replaces the fused kernels for {problem}: {reason}. "
                f"Please report this with: {verification.describe(device) if device else problem.device}",
                KernelWarning,
                stacklevel=2,
            )
        return True


class BoundFused(BoundAlgorithm):
    def prepare(self, table: Tensor) -> Prepared:
        """Return the table; if causal, zero-padded along the first axis to be symmetric about offset 0."""
        missing = self.problem.before[0] - self.problem.after[0]
        return (F.pad(table, [0, 0] * (table.ndim - 1) + [0, missing]) if missing else table,)

    def grad_table(self, grad_prepared: Prepared) -> Tensor:
        return grad_prepared[0].narrow(0, 0, self.problem.scope[0])

    def forward(self, operands: Operands) -> Tensor:
        """Compute the output, contiguous as (b, n, h, v). For float16, output, table and content lambda are float32."""
        queries, (table,), values, content = operands
        return forward_in_order(
            self._orders(values)[0], queries, table, values, _symmetric(self.problem, len(values)), content
        )

    def backward(self, grad_output: Tensor, operands: Operands, needs_grad: NeedsGrad) -> Gradients:
        queries, (table,), values, content = operands
        symmetric = _symmetric(self.problem, len(values))
        grad_queries, grad_table, grad_values = gradients(
            self._orders(values)[1], grad_output, queries, table, values, symmetric, needs_grad, content
        )
        return grad_queries, None if grad_table is None else (grad_table,), grad_values

    def _orders(self, values: Tensor) -> tuple[str, str]:
        device = kernel_device(str(values.device))
        assert device is not None
        return _orders(replace(self.problem, batch=len(values), dtype=values.dtype), device)


def _failure_reason(results: verification.SelfTestResults, kernels: Sequence[str], problem: Problem) -> str:
    failed = [f"{name} {results[name].reason}" for name in kernels if not results[name].passed]
    return f"{dtype_name(problem.dtype)} self-test: {'; '.join(failed)}" if failed else ""


def _symmetric(problem: Problem, batch: int) -> Problem:
    """Return the problem with a symmetric, non-causal table, as `BoundFused.prepare` returns, and another batch."""
    return replace(problem, batch=batch, after=problem.before, causal=False)


@lru_cache(maxsize=1024)
def _orders(problem: Problem, device: KernelDevice) -> tuple[str, str]:
    """Return the orders of the output and of the queries' gradient: that with the lower predicted time.

    The sum of lambdas is the same for both, so one order is best for both. float32 supports only the query order, and
    the loads of the gradient's lambda order are pipelined only for warpgroups.
    """
    launch_problem, gpu = _problem_per_launch(problem), _gpu_spec(device)
    orders = ("query",) if problem.dtype.itemsize > 2 else ("query", "lambda")

    def seconds(order: str) -> float:
        return prediction.kernel_seconds(kernels_of_order(order)[0], launch_problem, device.capability, gpu)

    order = min(orders, key=seconds)
    return order, order if device.capability[0] in (9, 10) else "query"


def _kernels(problem: Problem, device: KernelDevice) -> tuple[str, str]:
    """Return the kernels of the output and of the queries' gradient."""
    forward, gradient = _orders(problem, device)
    return kernels_of_order(forward)[0], kernels_of_order(gradient)[1]


def _gpu_spec(device: KernelDevice) -> GpuSpec:
    return find_gpu_spec(device.name, device.capability)


def _problem_per_launch(problem: Problem) -> Problem:
    """Return the problem of a single launch, which has a limited number of value channels."""
    return replace(
        _symmetric(problem, problem.batch),
        value_depth=min(problem.value_depth, max_value_channels(problem.dtype.itemsize)),
    )


def forward_in_order(
    order: str, queries: Tensor, table: Tensor, values: Tensor, problem: Problem, content: Tensor | None = None
) -> Tensor:
    """Compute the output; order: "query", or "lambda", which does not support float32."""
    slices = list(_launch_slices(problem))
    scales = None
    dtype = queries.dtype if len(slices) == 1 else torch.float32
    output = _Accumulator((*queries.shape[:3], problem.value_depth), output_dtype(queries.dtype), len(slices))
    with torch.cuda.device_of(values):  # Triton launches on the current device
        if queries.dtype == torch.float16:
            dtype = torch.float32
            table, content, scales = scaling.forward_operands(queries, table, content)
        for depths, channels, u in slices:
            operands = queries[..., depths], table[..., depths, u], values[:, :, channels, u]
            c = content[:, depths, channels] if content is not None and u == 0 else None
            output.add((..., channels), launches.forward(order, *operands, c, problem, dtype, scales))
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
        scaled = scaling.unscaled_backward_operands(grad_output, table, content)
        if queries.dtype == torch.float16:
            scaled = scaling.backward_operands(grad_output, queries, table, values, content)
        for depths, channels, u in slices:
            g, q, v = scaled.grad_output[..., channels], queries[..., depths], values[:, :, channels, u]
            if needs_grad.queries:
                r = scaled.table_for_grad_queries[..., depths, u]
                c = scaled.content[:, depths, channels] if scaled.content is not None and u == 0 else None
                part = launches.grad_queries(order, g, r, v, c, problem, dtype, scaled.grad_queries_scales)
                grad_queries.add((..., depths), part)
            if needs_grad.table:
                part = launches.grad_table(g, q, v, problem, scaled.grad_table_scale)
                grad_table.add((..., depths, u), part)
            if needs_grad.values:
                r = scaled.table_for_logits[..., depths, u]
                part = launches.grad_values(g, q, r, problem, dtype, scaled.grad_values_scale)
                grad_values.add((..., channels, u), part)
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
