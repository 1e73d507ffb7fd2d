"""Checks the fused kernels on the user's GPU: "auto" uses only those that were right.

At the first use of a device and dtype in a process, every kernel computes small problems, and the results are compared
with `ops.definition` in float64. Once, this takes the time to compile about 20 kernels, which Triton stores.
`lambdanets kernels --device cuda` prints the results. algorithm="fused" does not require a check.
"""

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lambdanets.errors import KernelWarning, is_out_of_memory, one_line
from lambdanets.ops import definition
from lambdanets.ops.position import fused
from lambdanets.ops.position.algorithm import Factors, Problem
from lambdanets.ops.position.position_term import make_problem
from lambdanets.ops.tables import crop_to_grid

DTYPES = (torch.bfloat16, torch.float32)


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
    """Inputs of a case, and by letter of `fused.Kernel.result` the results in float64.

    terms: number of terms of the sum in each element of a result.
    """

    problem: Problem
    factors: Factors
    grad_output: Tensor
    exact: dict[str, Tensor]
    terms: dict[str, int]


@functools.cache
def failures(device: str, dtype: torch.dtype) -> str:
    """Why kernels for a dtype fail, or "". If some fail, issues one KernelWarning that says what to report."""
    reasons = check(device, dtype)
    failed = "; ".join(f"{kernel} {reason}" for kernel, reason in reasons.items() if reason)
    if failed:
        warnings.warn(
            f"A slower exact algorithm replaces fused kernels for {dtype}: {failed}. "
            f"Please report this with: {describe(device)}",
            KernelWarning,
            stacklevel=2,
        )
    return failed


def check(device: str, dtype: torch.dtype) -> dict[str, str]:
    """Check all kernels for a dtype, and return why each fails, or "".

    Raises OutOfMemoryError, which says nothing about the kernels.
    """

    def run() -> dict[str, str]:
        place = "cpu" if device == "meta" else device
        cases = CASES if fused.is_interpreted() else (*CASES, FULL_TILE_CASE)
        examples = [make_example(case, dtype, place) for case in cases]
        return {name: check_kernel(name, examples) for name in fused.KERNELS}

    # The caller may be in inference mode, autocast, vmap or a mode of fake tensors. A new thread is not.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()


def check_kernel(kernel: str, examples: Sequence[Example]) -> str:
    """Why a kernel raises or is wrong in an example, or ""."""
    try:
        for example in examples:
            error, tolerance = max_relative_error(kernel, example)
            if not error <= tolerance:  # also true for NaN
                return f"is wrong: max relative error {error:.3g}, tolerance {tolerance:.3g}"
    except Exception as exception:
        if is_out_of_memory(exception):
            raise
        return f"raises {type(exception).__name__}: {one_line(exception)}"[:500]
    return ""


def max_relative_error(kernel: str, example: Example) -> tuple[float, float]:
    """Return max |result - exact| / RMS(exact), NaN if an element is NaN, and its tolerance.

    The tolerance is 8 (eps + eps32 sqrt(terms)). The intermediate result between two products and
    the final result are rounded to the dtype, by half an eps each, and float32 sums of `terms`
    products have an error of about eps32 sqrt(terms). The maximum over thousands of elements is a
    few times the typical error. TF32 products, a missing term or a wrong element exceed it.
    """
    result, letter = run_kernel(kernel, example), fused.KERNELS[kernel].result
    exact, terms = example.exact[letter], example.terms[letter]
    error = (result.to(exact.device).double() - exact).abs().max() / exact.square().mean().sqrt()
    eps, eps32 = torch.finfo(result.dtype).eps, torch.finfo(torch.float32).eps
    return error.item(), 8 * (eps + eps32 * math.sqrt(terms))


def run_kernel(kernel: str, example: Example) -> Tensor:
    """The result of a kernel."""
    return fused.Fused(example.problem).run(kernel, example.factors, example.grad_output)


def make_example(
    case: Case,
    dtype: torch.dtype,
    device: str,
    reference: Callable[..., Tensor] = definition.position_interaction,
    reference_device: str = "cpu",
) -> Example:
    """Make the inputs of a case, and its results in float64 by a reference on its device."""
    generator = torch.Generator(reference_device).manual_seed(0)
    b, h, n, k, v, u = case.batch, case.heads, math.prod(case.grid), case.k, case.v, case.u
    shapes = (b, h, n, k), (*case.sides, k, u), (b, n, v, u), (b, k, v), (b, h, n, v)
    inputs = [torch.randn(shape, generator=generator, device=generator.device) for shape in shapes]
    inputs = [x.to(dtype) for x in inputs]
    q, r, wide_values, content, grad = (x.double().requires_grad_() for x in inputs)
    y = reference(q, r, wide_values, case.grid)
    if case.content:
        y = y + q @ content.unsqueeze(1)
    dq, dr, dv = torch.autograd.grad(y, (q, r, wide_values), grad)
    queries, table, values, c, grad_output = (surround_with_nan(x.to(device)) for x in inputs)
    table, dr = crop_to_grid(table, case.grid), crop_to_grid(dr, case.grid)
    pairs = min(n, math.prod(case.sides))
    return Example(
        make_problem(queries, table, values, case.grid, False),
        (queries, table, values, c if case.content else None),
        grad_output,
        {"y": y.detach(), "q": dq, "R": dr, "V": dv},
        {"y": pairs * k * u, "q": pairs * v * u, "R": b * h * n * v, "V": pairs * h * k},
    )


def surround_with_nan(x: Tensor) -> Tensor:
    """Return x as a slice of a larger tensor of NaN, to detect reads outside of it.

    Rows stay aligned. An axis u of size 1 is not extended, so that kernels do not copy values.
    """
    margins = [1] * (x.ndim - 2) + [8 if side > 1 else 0 for side in x.shape[-2:]]
    padded = F.pad(x, [size for margin in reversed(margins) for size in (margin, margin)], value=torch.nan)
    return padded[tuple(slice(margin, margin + side) for margin, side in zip(margins, x.shape, strict=True))]


def describe(device: str) -> str:
    """The device and versions."""
    import triton

    from lambdanets import __version__

    major, minor = fused.gpu_capability(device) or (0, 0)
    name = "Triton's interpreter" if fused.is_interpreted() else torch.cuda.get_device_name(device)
    versions = f"torch {torch.__version__}, triton {triton.__version__}, lambdanets {__version__}"
    return f"{name}, compute capability {major}.{minor}, {versions}"
