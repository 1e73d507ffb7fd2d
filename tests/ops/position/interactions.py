"""Helpers for tests: inputs, outputs and gradients of position interactions, and the algorithms for CPU."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from lambdanets.ops import position_interaction
from lambdanets.ops.position.algorithm import Algorithm, BoundAlgorithm, Gradients
from lambdanets.ops.position.choose import ALGORITHMS
from lambdanets.ops.position.native import load_library
from lambdanets.ops.position.problem import Cost, NeedsGrad, Operands, Prepared, Problem

needs_native = pytest.mark.skipif(
    load_library() is None,
    reason="needs the compiled engine: install the package with ziglang or a C compiler",
)


def supported_algorithms(*grid: int) -> list[str]:
    """Return the algorithms that support a grid on CPU in float64, which excludes the fused kernels."""
    ones = (1,) * len(grid)
    problem = Problem(1, 1, grid, 1, 1, 1, ones, ones, False, torch.float64, "cpu")
    return [name for name, algorithm in ALGORITHMS.items() if not algorithm.unsupported(problem)]


class Spy(Algorithm):
    """Wraps an algorithm: limits the examples per call, counts `prepare` and records queries.

    dtype: replaces the one in which the algorithm would compute.
    """

    def __init__(self, name: str, max_batch: int = 1 << 30, dtype: torch.dtype | None = None) -> None:
        self.inner, self.max_batch, self.dtype = ALGORITHMS[name], max_batch, dtype
        self.num_prepared, self.queries = 0, list[Tensor]()

    def cost(self, problem: Problem) -> Cost:
        return self.inner.cost(problem)

    def bind(self, problem: Problem) -> BoundAlgorithm:
        return BoundSpy(self, self.inner.bind(problem.limit_batch(self.max_batch)))


class BoundSpy(BoundAlgorithm):
    def __init__(self, spy: Spy, inner: BoundAlgorithm) -> None:
        super().__init__(inner.problem, spy.dtype or inner.dtype)
        self.spy, self.inner = spy, inner

    def prepare(self, table: Tensor) -> Prepared:
        self.spy.num_prepared += 1
        return self.inner.prepare(table)

    def forward(self, operands: Operands) -> Tensor:
        self.spy.queries.append(operands.queries)
        return self.inner.forward(operands)

    def backward(self, grad_output: Tensor, operands: Operands, needs_grad: NeedsGrad) -> Gradients:
        return self.inner.backward(grad_output, operands, needs_grad)

    def grad_table(self, grad_prepared: Prepared) -> Tensor:
        return self.inner.grad_table(grad_prepared)


def make_inputs(
    grid: Sequence[int],
    sides: Sequence[int],
    u: int = 0,
    batch: int = 2,
    heads: int = 3,
    k: int = 4,
    v: int = 5,
    dtype: torch.dtype = torch.float64,
) -> list[Tensor]:
    """Make queries, table and values; u = 0 omits the axis u."""
    generator = torch.Generator().manual_seed(math.prod(grid) + sum(sides) + u)
    extra = (u,) if u else ()
    shapes = (batch, heads, math.prod(grid), k), (*sides, k, *extra), (batch, math.prod(grid), v, *extra)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def with_gradients(function: Callable[..., Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return function(*inputs) and its gradients for a fixed random grad_output."""
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    output = function(*inputs)
    grad_output = torch.randn(output.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return [output.detach(), *torch.autograd.grad(output, inputs, grad_output.to(output.dtype))]


def run(inputs: Sequence[Tensor], grid: Sequence[int], **options: Any) -> list[Tensor]:
    """Return the output of the position interaction and the gradients of queries, table and values."""
    return with_gradients(lambda *x: position_interaction(*x, grid, **options), inputs)


def assert_all_close(results: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float = 1e-11) -> None:
    """Compare tensors with a tolerance relative to the largest magnitude of each expected tensor."""
    for actual, target in zip(results, expected, strict=True):
        torch.testing.assert_close(actual, target, rtol=tolerance, atol=tolerance * target.abs().max().item())
