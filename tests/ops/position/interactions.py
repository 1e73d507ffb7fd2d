"""Inputs, and all that comes out of a position interaction: outputs and gradients, by an algorithm or exactly."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lambdanets.ops import position_interaction


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
    """Queries, table and values; u of 0 stands for no intra-depth."""
    generator = torch.Generator().manual_seed(math.prod(grid) + sum(sides) + u)
    extra = (u,) if u else ()
    shapes = (batch, heads, math.prod(grid), k), (*sides, k, *extra), (batch, math.prod(grid), v, *extra)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def with_gradients(function: Callable[..., Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """function(*inputs) and its gradients for one and the same random gradient of the output."""
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    output = function(*inputs)
    gradient = torch.randn(output.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return [output.detach(), *torch.autograd.grad(output, inputs, gradient.to(output.dtype))]


def run(inputs: Sequence[Tensor], grid: Sequence[int], **options: Any) -> list[Tensor]:
    """The output and the three gradients of the position interaction."""
    return with_gradients(lambda *x: position_interaction(*x, grid, **options), inputs)


def assert_all_close(results: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float = 1e-11) -> None:
    """Equal up to a tolerance relative to the largest number of each."""
    for result, other in zip(results, expected, strict=True):
        torch.testing.assert_close(result, other, rtol=tolerance, atol=tolerance * other.abs().max().item())
