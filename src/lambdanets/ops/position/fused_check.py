"""Checks the fused kernels on the user's GPU: "auto" uses only those that were right.

At the first use of a device and dtype in a process, every kernel computes small problems, and the results are compared
with those of `query_order` in float64. Once, this takes the time to compile about 20 kernels, which Triton stores.
`lambdanets kernels --device cuda` prints the results. algorithm="fused" does not require a check.
"""

import functools
import math
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lambdanets.errors import KernelWarning, is_out_of_memory, one_line
from lambdanets.ops.position import fused
from lambdanets.ops.position.algorithm import Factors, Problem
from lambdanets.ops.position.position_term import compute_position_term, make_plan

# Maximum error relative to the RMS of a result. An intermediate result and the final one are rounded to bfloat16, by
# half an eps each, and the largest of thousands of errors is a few times the typical one. In float32, errors measured
# on an H200 are below 1e-5. A product in TF32, a missing term or a wrong element exceeds it.
TOLERANCES = {torch.bfloat16: 0.06, torch.float32: 1e-4}


class Case(NamedTuple):
    """Sizes of a problem, the sides of its table, and whether there is a content lambda."""

    batch: int
    heads: int
    grid: tuple[int, ...]
    sides: tuple[int, ...]
    k: int
    v: int
    u: int = 1
    content: bool = False


CASES = (
    Case(3, 4, (5, 7), (3, 5), 16, 16, content=True),
    Case(3, 2, (4, 9), (7, 3), 10, 20),  # depths that are not multiples of 16
    Case(9, 1, (3, 5), (5, 9), 16, 40, u=2),  # global scope; one launch per intra-depth
    Case(2, 4, (11,), (7,), 24, 33, content=True),  # two launches, for 16 and 8 query depths
)
FULL_TILE_CASE = Case(2112, 4, (3, 5), (3, 3), 16, 16)  # too slow for the interpreter


class Example(NamedTuple):
    """Inputs of a case, and the result of each kernel in float64."""

    problem: Problem
    factors: Factors
    grad_output: Tensor
    exact: dict[str, Tensor]

    @classmethod
    def of(cls, case: Case, dtype: torch.dtype, device: str) -> "Example":
        """Make the inputs of a case, slices of larger tensors of NaN, and its results by `query_order` in float64."""
        generator = torch.Generator(device).manual_seed(0)
        b, h, n, k, v, u = case.batch, case.heads, math.prod(case.grid), case.k, case.v, case.u
        shapes = (b, h, n, k), (*case.sides, k, u), (b, n, v, u), (b, k, v), (b, h, n, v)
        inputs = [torch.randn(shape, generator=generator, device=device).to(dtype) for shape in shapes]
        q, r, wide_values, c, grad = (x.double().requires_grad_() for x in inputs)
        y = compute_position_term(q, r, wide_values, c if case.content else None, case.grid, algorithm="query_order")
        results = (y.detach(), *torch.autograd.grad(y, (q, r, wide_values), grad))
        queries, table, values, content, grad_output = map(surround_with_nan, inputs)
        factors = queries, table, values, content if case.content else None
        problem = make_plan(factors, case.grid, False, "query_order").problem  # "auto" would call this check
        return cls(problem, factors, grad_output, dict(zip(fused.KERNELS, results, strict=True)))

    def run(self, kernel: str) -> Tensor:
        """The result of a kernel."""
        return fused.Fused(self.problem).run(kernel, self.factors, self.grad_output)

    def failure(self, kernel: str) -> str:
        """Why a kernel fails, by an exception or a wrong result, or ""."""
        tolerance = TOLERANCES[self.problem.dtype]
        try:
            error = max_relative_error(self.run(kernel), self.exact[kernel])
        except Exception as exception:
            if is_out_of_memory(exception):
                raise
            return f"{kernel} raises {type(exception).__name__}: {one_line(exception)}"[:500]
        is_right = error <= tolerance  # false for NaN
        return "" if is_right else f"{kernel} is wrong: max relative error {error:.3g}, tolerance {tolerance:.3g}"


@functools.cache
def failures(device: str, dtype: torch.dtype) -> str:
    """Check all kernels for a dtype, once in a process, and return which raise or are wrong, and why, or "".

    If some do, issues one KernelWarning that says what to report. Raises OutOfMemoryError, which says nothing about
    the kernels.
    """

    def run() -> str:
        cases = CASES if fused.is_interpreted() else (*CASES, FULL_TILE_CASE)
        examples = [Example.of(case, dtype, device) for case in cases]
        first = (next(filter(None, (each.failure(kernel) for each in examples)), "") for kernel in fused.KERNELS)
        return "; ".join(filter(None, first))

    # The caller may be in inference mode, autocast, vmap or a mode of fake tensors. A new thread is not.
    with ThreadPoolExecutor(1) as pool:
        failed = pool.submit(run).result()
    if failed:
        warnings.warn(
            f"A slower exact algorithm replaces fused kernels for {dtype}: {failed}. "
            f"Please report this with: {describe(device)}",
            KernelWarning,
            stacklevel=2,
        )
    return failed


def max_relative_error(result: Tensor, exact: Tensor) -> float:
    """Return max |result - exact| / RMS(exact), NaN if an element is NaN."""
    return ((result.double() - exact).abs().max() / exact.square().mean().sqrt()).item()


def surround_with_nan(x: Tensor) -> Tensor:
    """Return x as a slice of a larger tensor of NaN, to detect reads outside of it; rows stay aligned."""
    margins = [8 if side > 1 else 0 for side in x.shape]
    padded = F.pad(x, [margin for margin in reversed(margins) for _ in range(2)], value=torch.nan)
    return padded[tuple(slice(margin, margin + side) for margin, side in zip(margins, x.shape, strict=True))]


def describe(device: str) -> str:
    """The device and versions."""
    import triton

    from lambdanets import __version__

    name = "Triton's interpreter" if fused.is_interpreted() else torch.cuda.get_device_name(device)
    return f"{name}, torch {torch.__version__}, triton {triton.__version__}, lambdanets {__version__}"
