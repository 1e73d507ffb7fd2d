"""The self-test of the fused kernels: small problems against the plain formula, forward pass and gradients.

`verification` runs it in a process of its own, `python -m lambdanets.ops.position.fused.self_test DEVICE NAME DTYPE
KERNEL...`, which prints a line of JSON for each event:

    {"event": "ready"}                       imports are done and the exact results are there
    {"event": "start", "kernel": ...}
    {"event": "verdict", "kernel": ..., "reason": "" or why it is refused, "error": ..., "allowed": ..., "seconds": ...}
    {"event": "unable", "kernel": ..., "reason": ...}    it could not be tested, for want of memory

Queries, values, gradient and content of all cases but the largest lie in larger tensors full of NaN, where their depths
are whole units and so no copy is made, and every new tensor is full of NaN until it is written: so a read outside the
inputs and an element that is never written are found.
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
from lambdanets.ops.position.problem import NeedsGrad, Problem, problem_of


@dataclass(frozen=True)
class Case:
    """Sizes of a problem: batch, heads, grid, sides of the table, depths of queries and values, intra-depth.

    content: whether there is a content lambda. inside_nan: whether the inputs lie in tensors full of NaN.
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
    Case(3, 2, (4, 9), (7, 3), 10, 20),  # depths that are no multiples of 16
    Case(9, 1, (3, 5), (5, 9), 16, 40, u=2),  # global; a launch for each intra-depth
    Case(2, 4, (11,), (7,), 24, 33, content=True),  # a sequence; two launches, for 16 query depths and the others
)
# Enough programs for whole tiles, which smaller problems do not take: too many for the interpreter.
CASE_OF_WHOLE_TILES = Case(2112, 4, (3, 5), (3, 3), 16, 16, inside_nan=False)

# dq, dR and dV of the inputs (queries, table, values), the gradient of the output and the problem.
_GRADIENTS = {"queries_gradient": 0, "table_gradient": 1, "values_gradient": 2}


@dataclass(frozen=True)
class Example:
    """Inputs on the device (queries, table, values, gradient), the problem, and the exact results: y, dq, dR, dV."""

    inputs: tuple[Tensor, ...]
    problem: Problem
    exact: tuple[Tensor, ...]
    terms: tuple[int, ...]  # that a number of each result sums
    content: Tensor | None = None


def surrounded_by_nan(x: Tensor) -> Tensor:
    """x as a part of a tensor that is NaN elsewhere, with rows that start as aligned as they did.

    An axis of one number stays as it is: kernels take values of one intra-depth without a copy.
    """
    wide = [side + 16 if side > 1 else 1 for side in x.shape]
    around = torch.full(wide, torch.nan, dtype=x.dtype, device=x.device)
    for axis, side in enumerate(x.shape):
        around = around.narrow(axis, 8 if side > 1 else 0, side)
    return around.copy_(x)


def make_example(case: Case, dtype: torch.dtype, device: str) -> Example:
    """A case with its exact results, by the plain formula in float64 on the CPU."""
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
        inputs = [surrounded_by_nan(x) for x in inputs]
        content = None if content is None else surrounded_by_nan(content)
    queries, table, values, gradient = inputs
    table = crop_to_grid(table, case.grid)
    pairs = min(n, math.prod(case.sides))
    return Example(
        (queries, table, values, gradient),
        problem_of(queries, table, values, case.grid, False),
        (output.detach(), dq, crop_to_grid(dr, case.grid), dv),
        (pairs * k * u, pairs * v * u, b * h * n * v, pairs * h * k),
        content,
    )


def run_kernel(kernel: str, example: Example) -> tuple[Tensor, Tensor, int]:
    """What a kernel makes of an example, what is exact, and how many terms a number of it sums."""
    queries, table, values, gradient = example.inputs
    if kernel in _GRADIENTS:
        place = _GRADIENTS[kernel]
        needs_grad = NeedsGrad(*(place == i for i in range(3)))
        found = fused.gradients(gradient, queries, table, values, example.problem, needs_grad, example.content)[place]
        assert found is not None
        return found, example.exact[1 + place], example.terms[1 + place]
    order = kernel.removeprefix("forward_").removesuffix("_order")
    found = fused.forward_in_order(order, queries, table, values, example.problem, example.content)
    return found, example.exact[0], example.terms[0]


def largest_error(found: Tensor, exact: Tensor) -> float:
    """The largest |found - exact| over the root mean square of what is exact; NaN where a number is NaN."""
    return ((found.cpu().double() - exact).abs().max() / exact.square().mean().sqrt()).item()


def allowed_error(dtype: torch.dtype, terms: int) -> float:
    """8 (eps + eps32 sqrt(terms)), for `largest_error`.

    The factor between two products and the result are rounded to the dtype, by half an eps each, and sums of `terms`
    products in float32 lose about eps32 sqrt(terms); the largest error of thousands lies a few times above a usual one.
    A product of float32 in TF32, a missing term or a wrong element exceed it.
    """
    return 8 * (torch.finfo(dtype).eps + torch.finfo(torch.float32).eps * math.sqrt(terms))


def check_kernel(kernel: str, examples: Sequence[Example]) -> dict[str, Any]:
    """The verdict on a kernel: the example with the largest error beside the one allowed, or where it raised."""
    start = time.perf_counter()
    worst: dict[str, Any] = {"reason": "", "error": 0.0, "allowed": 1.0}
    for example in examples:
        try:
            found, exact, terms = run_kernel(kernel, example)
            error, allowed = largest_error(found, exact), allowed_error(example.problem.dtype, terms)
        except torch.OutOfMemoryError:
            raise
        except Exception as problem:
            reason = " ".join(f"{type(problem).__name__}: {problem}".split())[:500]
            worst = {"reason": f"raises {reason}", "error": None, "allowed": None}
            break
        if not error / allowed <= worst["error"] / worst["allowed"]:  # NaN is worse than any
            worst = {"reason": "", "error": error, "allowed": allowed}
        if not error <= allowed:
            worst["reason"] = f"is wrong: its largest relative error is {error:.3g}, allowed is {allowed:.3g}"
            break
    return worst | {"seconds": time.perf_counter() - start}


def main(arguments: Sequence[str]) -> int:
    """Test kernels in a dtype on a device that should have the name given; 0 unless the device stops answering."""
    device, name, dtype_name, *kernels = arguments
    found = kernel_device(device)
    if found is None or found.name != name:
        sys.stderr.write(f"the self-test's process finds {found.name if found else 'no such GPU'} as {device}\n")
        return 1
    torch.use_deterministic_algorithms(True, warn_only=True)  # fills new tensors with NaN
    dtype = getattr(torch, dtype_name)
    cases = CASES if found.is_interpreter else (*CASES, CASE_OF_WHOLE_TILES)
    examples = [make_example(case, dtype, device) for case in cases]
    _tell("ready")
    for kernel in kernels:
        _tell("start", kernel=kernel)
        # ends this process though a compiler hangs in C, should nobody be left to end it
        faulthandler.dump_traceback_later(time_limit() + 30, exit=True)
        try:
            _tell("verdict", kernel=kernel, **check_kernel(kernel, examples))
        except torch.OutOfMemoryError as error:
            _tell("unable", kernel=kernel, reason=" ".join(str(error).split())[:200])
        if not found.is_interpreter:
            torch.ones(1, device=device).item()  # raises after an illegal access: all later calls would fail
    return 0


def _tell(event: str, **content: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, **content}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
