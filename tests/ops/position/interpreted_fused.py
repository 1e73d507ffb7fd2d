"""Runs the fused kernels in Triton's interpreter and prints results for the tests as JSON.

This script runs in a subprocess, because TRITON_INTERPRET=1 must be set before Triton is imported. Inputs are slices of
larger tensors of NaN, and new tensors are filled with NaN.
"""

import json
import tempfile
from typing import Any

import torch

from lambdanets import plan, position_interaction
from lambdanets.ops.position import fused_check
from lambdanets.ops.position.fused import KERNELS
from lambdanets.ops.position.fused_check import Case, Example

CASES = {
    "ragged tiles": (torch.float16, Case(3, 2, (7, 9), (5, 5), 16, 16)),
    "wide values, one head": (torch.float16, Case(3, 1, (5, 6), (3, 5), 16, 128)),
    "five heads, odd depths": (torch.float16, Case(3, 5, (4, 9), (5, 3), 10, 20)),
    "one position": (torch.float16, Case(2, 4, (1, 1), (1, 1), 16, 16)),
    **{f"check {i}": ((torch.float16, torch.float32)[i % 2], case) for i, case in enumerate(fused_check.CASES)},
}


def with_large_strides(x: torch.Tensor) -> torch.Tensor:
    """Return a copy of x, in a sparse file, whose batch stride is 2^31 elements."""
    stride = 2**31
    size = (x.shape[0] - 1) * stride + x[0].numel()
    strides = stride, *torch.empty(x.shape[1:], device="meta").stride()
    with tempfile.NamedTemporaryFile() as file:
        file.truncate(size * x.itemsize)
        memory = torch.from_file(file.name, shared=True, size=size, dtype=x.dtype)
    return memory.as_strided(x.shape, strides).copy_(x)


def errors(dtype: torch.dtype, case: Case, large_strides: bool = False) -> dict[str, float]:
    """Return ||result - exact|| / ||exact|| by kernel."""
    example = Example.of(case, dtype, "cpu")
    if large_strides:
        queries, table, values, content = example.factors
        factors = (with_large_strides(queries), table, with_large_strides(values), with_large_strides(content))
        example = example._replace(factors=factors, grad_output=with_large_strides(example.grad_output))
    error_by_kernel = {}
    for name in KERNELS:
        result, exact = example.run(name), example.exact[name]
        assert result.dtype == dtype
        error_by_kernel[name] = ((result.double() - exact).norm() / exact.norm()).item()
    return error_by_kernel


def automatic_choice() -> dict[str, Any]:
    """The algorithm of "auto" after the check of a small case, and the output's error."""
    fused_check.CASES = (Case(1, 2, (2, 3), (3, 3), 16, 16),)
    generator = torch.Generator().manual_seed(0)
    shapes = (1, 2, 9, 16), (5, 5, 16), (1, 9, 16)
    inputs = [torch.randn(shape, generator=generator) for shape in shapes]
    y, exact = (position_interaction(*inputs, (3, 3), algorithm=name) for name in ("auto", "query_order"))
    return {"algorithm": plan(*inputs, (3, 3)).algorithm, "error": ((y - exact).norm() / exact.norm()).item()}


def large_table_gradient_error() -> float:
    """Return the relative error of a table gradient beyond the range of float16, with float16 queries and values."""
    generator = torch.Generator().manual_seed(0)
    queries, values = (torch.rand(shape, generator=generator).half() for shape in ((4, 2, 20, 16), (4, 20, 16)))
    table = torch.rand(3, 3, 16, generator=generator, requires_grad=True)
    results = []
    for algorithm in ("fused", "query_order"):
        with torch.autocast("cpu", torch.float16):
            y = position_interaction(queries, table, values, (4, 5), algorithm=algorithm)
        assert y.dtype == torch.float32
        results.append(torch.autograd.grad(y, table, torch.full_like(y, 300.0))[0].double())
    assert results[1].abs().max() > torch.finfo(torch.float16).max
    return ((results[0] - results[1]).norm() / results[1].norm()).item()


if __name__ == "__main__":
    torch.use_deterministic_algorithms(True)  # fills new tensors with NaN
    results = {
        "errors": {name: errors(*case) for name, case in CASES.items()},
        "large strides": {
            dtype: errors(getattr(torch, dtype), Case(2, 4, (3, 4), (3, 3), 16, 16, content=True), large_strides=True)
            for dtype in ("float16", "float32")
        },
        "large table gradient": large_table_gradient_error(),
        "auto": automatic_choice(),
    }
    print(json.dumps(results))
