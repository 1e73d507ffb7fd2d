"""The self-test of the fused kernels: compares forward pass and gradients of small problems with `ops.definition`.

`verification` runs it in a subprocess, `python -m lambdanets.ops.position.fused.self_test DEVICE NAME DTYPE
KERNEL...`, which prints one line of JSON per event:

    {"event": "ready"}                       after imports and reference results
    {"event": "start", "kernel": ...}
    {"event": "result", "kernel": ..., "reason": "" or why it failed, "error": ..., "allowed": ..., "seconds": ...}
    {"event": "unable", "kernel": ..., "reason": ...}    if out of memory

To detect reads outside of the inputs and elements that are not written, new tensors are filled with NaN. The inputs of
all cases except the largest are slices of larger tensors of NaN, unless their depths require an aligned copy.
"""

import faulthandler
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lambdanets.ops import definition
from lambdanets.ops.geometry import crop_to_grid
from lambdanets.ops.position import fused
from lambdanets.ops.position.fused.device import kernel_device
from lambdanets.ops.position.fused.self_test_process import time_limit
from lambdanets.ops.position.problem import NeedsGrad, Problem, make_problem


@dataclass(frozen=True)
class Case:
    """Sizes of a problem: batch, heads, grid, sides of the table, query depth k, value depth v, intra-depth u.

    content: add a content lambda. inside_nan: make inputs slices of larger tensors of NaN.
    """

    batch: int
    heads: int
    grid: tuple[int, ...]
    sides: tuple[int, ...]
    k: int
    v: int
    u: int = 1
    content: bool = False
    inside_nan: bool = True


CASES = (
    Case(3, 4, (5, 7), (3, 5), 16, 16, content=True),
    Case(3, 2, (4, 9), (7, 3), 10, 20),  # depths that are not multiples of 16
    Case(9, 1, (3, 5), (5, 9), 16, 40, u=2),  # global scope; one launch per intra-depth
    Case(2, 4, (11,), (7,), 24, 33, content=True),  # a sequence; two launches, for 16 and 8 query depths
)
# Large enough for full tiles; too slow for the interpreter.
FULL_TILE_CASE = Case(2112, 4, (3, 5), (3, 3), 16, 16, inside_nan=False)

# Index of each gradient kernel in the result of `fused.gradients`.
_GRADIENT_INDICES = {"grad_queries": 0, "grad_queries_lambda_order": 0, "grad_table": 1, "grad_values": 2}


@dataclass(frozen=True)
class Example:
    """A problem with inputs on the device and float64 results.

    inputs: queries, table, values, grad_output. exact: output and gradients of queries, table and values.
    terms: number of terms summed per element of each result.
    """

    inputs: tuple[Tensor, ...]
    problem: Problem
    exact: tuple[Tensor, ...]
    terms: tuple[int, ...]
    content: Tensor | None = None


def surround_with_nan(x: Tensor) -> Tensor:
    """Return x as a slice of a larger tensor of NaN, with the same alignment of rows.

    Axes of size 1 are not extended, so that kernels accept values with u = 1 without a copy.
    """
    shape = [side + 16 if side > 1 else 1 for side in x.shape]
    view = torch.full(shape, torch.nan, dtype=x.dtype, device=x.device)
    for axis, side in enumerate(x.shape):
        view = view.narrow(axis, 8 if side > 1 else 0, side)
    return view.copy_(x)


def make_example(case: Case, dtype: torch.dtype, device: str) -> Example:
    """Make the inputs of a case, and compute its results with `ops.definition` in float64 on the CPU."""
    generator = torch.Generator().manual_seed(0)
    b, h, n, k, v, u = case.batch, case.heads, math.prod(case.grid), case.k, case.v, case.u
    shapes = (b, h, n, k), (*case.sides, k, u), (b, n, v, u), (b, h, n, v)
    rounded = [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]
    q, r, values = (x.double().requires_grad_() for x in rounded[:3])
    output = definition.position_interaction(q, r, values, case.grid)
    content = torch.randn(b, k, v, generator=generator, dtype=torch.float64).to(dtype) if case.content else None
    if content is not None:
        output = output + q @ content.double().unsqueeze(1)
    dq, dr, dv = torch.autograd.grad(output, (q, r, values), rounded[3].double())
    inputs = [x.to(device) for x in rounded]
    content = None if content is None else content.to(device)
    if case.inside_nan:
        inputs = [surround_with_nan(x) for x in inputs]
        content = None if content is None else surround_with_nan(content)
    queries, table, values, grad_output = inputs
    table = crop_to_grid(table, case.grid)
    context_size = min(n, math.prod(case.sides))
    return Example(
        (queries, table, values, grad_output),
        make_problem(queries, table, values, case.grid, False),
        (output.detach(), dq, crop_to_grid(dr, case.grid), dv),
        (context_size * k * u, context_size * v * u, b * h * n * v, context_size * h * k),
        content,
    )


def run_kernel(kernel: str, example: Example) -> tuple[Tensor, Tensor, int]:
    """Return the result of a kernel for an example, the float64 result, and the number of terms per element."""
    queries, table, values, grad_output = example.inputs
    if kernel in _GRADIENT_INDICES:
        index = _GRADIENT_INDICES[kernel]
        needs_grad = NeedsGrad(*(index == i for i in range(3)))
        order = "lambda" if kernel.endswith("lambda_order") else "query"
        inputs = grad_output, queries, table, values
        gradient = fused.gradients(order, *inputs, example.problem, needs_grad, example.content)[index]
        assert gradient is not None
        return gradient, example.exact[1 + index], example.terms[1 + index]
    order = kernel.removeprefix("forward_").removesuffix("_order")
    output = fused.forward_in_order(order, queries, table, values, example.problem, example.content)
    return output, example.exact[0], example.terms[0]


def max_relative_error(result: Tensor, exact: Tensor) -> float:
    """Return max |result - exact| / RMS(exact); NaN if any element is NaN."""
    return ((result.cpu().double() - exact).abs().max() / exact.square().mean().sqrt()).item()


def error_tolerance(dtype: torch.dtype, terms: int) -> float:
    """Return the tolerance for `max_relative_error`, 8 (eps + eps32 sqrt(terms)).

    The intermediate result between two products and the final result are rounded to the dtype, by half an eps each, and
    float32 sums of `terms` products have an error of about eps32 sqrt(terms). The maximum over thousands of elements is
    a few times the typical error. TF32 products, a missing term or a wrong element exceed the tolerance.
    """
    return 8 * (torch.finfo(dtype).eps + torch.finfo(torch.float32).eps * math.sqrt(terms))


def check_kernel(kernel: str, examples: Sequence[Example]) -> dict[str, Any]:
    """Test a kernel: return its largest error relative to the tolerance over all examples, or the exception."""
    start = time.perf_counter()
    worst: dict[str, Any] = {"reason": "", "error": 0.0, "allowed": 1.0}
    for example in examples:
        try:
            result, exact, terms = run_kernel(kernel, example)
            error, allowed = max_relative_error(result, exact), error_tolerance(example.problem.dtype, terms)
        except torch.OutOfMemoryError:
            raise
        except Exception as exception:
            reason = " ".join(f"{type(exception).__name__}: {exception}".split())[:500]
            worst = {"reason": f"raises {reason}", "error": None, "allowed": None}
            break
        if not error / allowed <= worst["error"] / worst["allowed"]:  # also true for NaN
            worst = {"reason": "", "error": error, "allowed": allowed}
        if not error <= allowed:
            worst["reason"] = f"is wrong: max relative error {error:.3g}, tolerance {allowed:.3g}"
            break
    return worst | {"seconds": time.perf_counter() - start}


def main(arguments: Sequence[str]) -> int:
    """Test kernels in a dtype on a device; return exit code 1 if the device has another name."""
    device, name, dtype_name, *kernels = arguments
    actual = kernel_device(device)
    if actual is None or actual.name != name:
        sys.stderr.write(
            f"{device} must be {name} in the self-test's process, got {actual.name if actual else 'no such GPU'}\n"
        )
        return 1
    torch.use_deterministic_algorithms(True, warn_only=True)  # fills new tensors with NaN
    dtype = getattr(torch, dtype_name)
    cases = CASES if actual.is_interpreter else (*CASES, FULL_TILE_CASE)
    examples = [make_example(case, dtype, device) for case in cases]
    _print_event("ready")
    for kernel in kernels:
        _print_event("start", kernel=kernel)
        # Exit if the compiler hangs in C code and the parent process has ended.
        faulthandler.dump_traceback_later(time_limit() + 30, exit=True)
        try:
            _print_event("result", kernel=kernel, **check_kernel(kernel, examples))
        except torch.OutOfMemoryError as error:
            _print_event("unable", kernel=kernel, reason=" ".join(str(error).split())[:200])
        if not actual.is_interpreter:
            torch.ones(1, device=device).item()  # raises if an illegal memory access broke the CUDA context
    return 0


def _print_event(event: str, **content: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, **content}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
