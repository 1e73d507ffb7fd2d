"""Helpers for tests: inputs, outputs and gradients of position interactions, and the algorithms for CPU."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from lambdanets.ops import definition, position_interaction
from lambdanets.ops.position.algorithm import Algorithm, Derivatives, Inputs, Needs, Problem
from lambdanets.ops.position.choose import ALGORITHMS, choose
from lambdanets.ops.position.native import load_library

needs_native = pytest.mark.skipif(
    load_library() is None, reason="needs the compiled engine: install the package with ziglang or a C compiler"
)


def supported_algorithms(*grid: int) -> list[str]:
    """Return the algorithms that support a grid on CPU in float64, which excludes the fused kernels."""
    ones = (1,) * len(grid)
    problem = Problem(1, 1, grid, 1, 1, 1, ones, ones, False, torch.float64, "cpu")
    return [name for name, algorithm in ALGORITHMS.items() if not algorithm.unsupported(problem)]


class Spy:
    """Makes an algorithm that limits the examples per call and records the queries of forward passes.

    dtype: replaces the one in which the algorithm would compute.
    """

    def __init__(self, name: str, max_batch: int = 1 << 30, dtype: torch.dtype | None = None) -> None:
        self.inner, self.max_batch, self.dtype = ALGORITHMS[name], max_batch, dtype
        self.unsupported = self.inner.unsupported
        self.queries = list[Tensor]()
        choose.cache_clear()  # its plans have the algorithm

    def __call__(self, problem: Problem) -> Algorithm:
        algorithm = self.inner(problem._replace(batch=min(problem.batch, self.max_batch)))
        algorithm.dtype = self.dtype or algorithm.dtype
        derive = algorithm.derive

        def record(grad_output: Tensor | None, inputs: Inputs, needs: Needs) -> Derivatives:
            self.queries += [inputs[0]] * needs.output
            return derive(grad_output, inputs, needs)

        algorithm.derive = record
        return algorithm


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


def make_factors(grid: Sequence[int], sides: Sequence[int], u: int = 0, **options: Any) -> list[Tensor]:
    """Make queries, table, values and content lambda (b, k, v); the options are those of `make_inputs`."""
    queries, table, values = make_inputs(grid, sides, u, **options)
    shape = len(queries), queries.shape[3], values.shape[2]
    content = torch.randn(shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    return [queries, table, values, content.to(queries.dtype)]


def with_gradients(function: Callable[..., Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return function(*inputs) and its gradients for a fixed random grad_output."""
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    output = function(*inputs)
    grad_output = torch.randn(output.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return [output.detach(), *torch.autograd.grad(output, inputs, grad_output.to(output.dtype))]


def run(inputs: Sequence[Tensor], grid: Sequence[int], **options: Any) -> list[Tensor]:
    """Return the output of the position interaction and the gradients of queries, table and values."""
    return with_gradients(lambda *x: position_interaction(*x, grid, **options), inputs)


def run_with_content(factors: Sequence[Tensor], grid: Sequence[int], **options: Any) -> list[Tensor]:
    """Return the output with the content term, and the gradients of all four factors."""
    return with_gradients(lambda *x: position_interaction(*x[:3], grid, content=x[3], **options), factors)


def define(queries: Tensor, table: Tensor, values: Tensor, content: Tensor, *options: Any, **names: Any) -> Tensor:
    """The definition of the position interaction with a content lambda."""
    return definition.position_interaction(queries, table, values, *options, **names) + queries @ content.unsqueeze(1)


def assert_all_close(results: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float = 1e-11) -> None:
    """Compare tensors with a tolerance relative to the largest magnitude of each expected tensor."""
    for actual, target in zip(results, expected, strict=True):
        torch.testing.assert_close(actual, target, rtol=tolerance, atol=tolerance * target.abs().max().item())
