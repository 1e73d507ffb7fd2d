"""Runs the fused kernels in Triton's interpreter and prints their relative errors as JSON.

A process of its own, because TRITON_INTERPRET=1 must be set before Triton is imported. Every input lies in a larger
tensor full of NaN, and every new tensor is full of NaN until it is written.
"""

import json
import math

import torch
from torch import Tensor

from lambdanets.ops import definition
from lambdanets.ops.geometry import crop_to_grid
from lambdanets.ops.position import fused
from lambdanets.ops.position.problem import Wanted, problem_of

# dtype, batch, heads, grid, sides of the table, k, v, u
CASES = {
    "ragged tiles": (torch.float16, 5, 4, (9, 11), (5, 5), 16, 16, 1),
    "global": (torch.float16, 2, 4, (14, 6), (27, 11), 16, 16, 1),
    "one small map": (torch.float16, 1, 4, (7, 7), (3, 3), 16, 32, 1),
    "line": (torch.float16, 3, 4, (20,), (7,), 16, 16, 1),
    "wide values, one head": (torch.float16, 9, 1, (5, 6), (3, 5), 16, 128, 1),
    "five heads, odd depths": (torch.float16, 3, 5, (4, 9), (5, 3), 10, 20, 1),
    "several launches": (torch.float16, 1, 4, (3, 7), (3, 3), 32, 144, 2),
    "one position": (torch.float16, 2, 4, (1, 1), (1, 1), 16, 16, 1),
    "ragged tiles in float32": (torch.float32, 5, 4, (6, 9), (5, 5), 16, 16, 1),
    "line in float32": (torch.float32, 3, 4, (20,), (7,), 16, 40, 1),
}


def inside_nan(x: Tensor) -> Tensor:
    """x as a part of a tensor that is NaN elsewhere, with rows that start as aligned as they did."""
    around = torch.full([side + 16 for side in x.shape], torch.nan, dtype=x.dtype)
    for axis, side in enumerate(x.shape):
        around = around.narrow(axis, 8, side)
    return around.copy_(x)


def errors(
    dtype: torch.dtype, b: int, h: int, grid: tuple[int, ...], sides: tuple[int, ...], k: int, v: int, u: int
) -> dict[str, float]:
    """||result - exact|| / ||exact|| for both orders of the forward pass and the gradients."""
    generator = torch.Generator().manual_seed(0)
    n = math.prod(grid)
    shapes = (b, h, n, k), (*sides, k, u), (b, n, v, u), (b, h, n, v)
    inputs = [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]
    exact_inputs = [x.double().requires_grad_() for x in inputs[:3]]
    exact = definition.position_interaction(*exact_inputs, grid)
    gradients = torch.autograd.grad(exact, exact_inputs, inputs[3].double())
    queries, table, values, gradient = (inside_nan(x) for x in inputs)
    table = crop_to_grid(table, grid)
    problem = problem_of(queries, table, values, grid, False)
    results = {"query order": (fused.forward_in_order("query", queries, table, values, problem), exact)}
    if dtype != torch.float32:
        results["lambda order"] = fused.forward_in_order("lambda", queries, table, values, problem), exact
    found = fused.gradients(gradient, queries, table, values, problem, Wanted(True, True, True))
    for name, result, truth in zip(("queries", "table", "values"), found, gradients, strict=True):
        assert result is not None
        assert result.dtype == dtype
        results[name] = result, crop_to_grid(truth, grid) if name == "table" else truth
    return {name: ((x.double() - truth).norm() / truth.norm()).item() for name, (x, truth) in results.items()}


if __name__ == "__main__":
    torch.use_deterministic_algorithms(True)  # fills new tensors with NaN
    print(json.dumps({name: errors(*case) for name, case in CASES.items()}))
