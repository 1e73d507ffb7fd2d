"""Checks the fused kernels on the user's GPU: "auto" uses only those that were right.

At the first use of a device and dtype, every kernel computes small problems, and the results are
compared with `ops.definition` in float64. This takes the time to compile a few dozen kernels. The
results are stored in the user's cache folder, by device, versions and a hash of the kernels' source.
`lambdanets kernels --device cuda` checks again. algorithm="fused" does not require a check.

To detect reads outside of the inputs, these are slices of larger tensors of NaN, except in the
largest case, unless their depths require an aligned copy.
"""

import contextlib
import hashlib
import importlib.metadata
import json
import math
import os
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lambdanets.errors import KernelWarning
from lambdanets.files import atomic_write, user_cache_folder
from lambdanets.ops import definition
from lambdanets.ops.geometry import crop_to_grid
from lambdanets.ops.position import fused
from lambdanets.ops.position.fused.device import KernelDevice
from lambdanets.ops.position.fused.tiles import kernels_of_order
from lambdanets.ops.position.problem import NeedsGrad, Problem, make_problem

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True)
class Case:
    """Sizes of a problem: batch, heads, grid, sides of the table, depths k and v, intra-depth u.

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
    Case(2, 4, (11,), (7,), 24, 33, content=True),  # two launches, for 16 and 8 query depths
)
# Large enough for full tiles; too slow for the interpreter.
FULL_TILE_CASE = Case(2112, 4, (3, 5), (3, 3), 16, 16, inside_nan=False)

# Index of each gradient kernel in the result of `fused.gradients`.
_GRADIENT_INDICES = {
    "grad_queries": 0,
    "grad_queries_lambda_order": 0,
    "grad_table": 1,
    "grad_values": 2,
}


@dataclass(frozen=True)
class Check:
    """The result of a kernel in a dtype on a device.

    reason: why the kernel failed, or "". error: largest relative error. allowed: its tolerance.
    seconds: duration, including compilation.
    """

    reason: str = ""
    error: float | None = None
    allowed: float | None = None
    seconds: float | None = None


Checks = Mapping[str, Check]


@dataclass(frozen=True)
class Example:
    """A problem with inputs on the device and float64 results.

    inputs: queries, table, values, grad_output. exact: output and gradients of queries, table and
    values. terms: number of terms summed per element of each result.
    """

    inputs: tuple[Tensor, ...]
    problem: Problem
    exact: tuple[Tensor, ...]
    terms: tuple[int, ...]
    content: Tensor | None = None


_known: dict[tuple[KernelDevice, torch.dtype], Checks] = {}
_lock = threading.RLock()


def kernels_for_dtype(dtype: torch.dtype) -> tuple[str, ...]:
    """The kernels for a dtype; the lambda order supports only 16-bit dtypes."""
    orders = ("query", "lambda") if dtype.itemsize == 2 else ("query",)
    in_orders = (kernel for order in orders for kernel in kernels_of_order(order))
    return (*in_orders, "grad_values", "grad_table")


def get_checks(device: KernelDevice, dtype: torch.dtype) -> Checks:
    """The results of all kernels for a dtype; runs the check if they are not stored.

    Other threads wait. If kernels fail, issues one KernelWarning that says what to report.
    """
    with _lock:
        found = _known.get((device, dtype))
        if found is not None:
            return found
        stored = _read().get(describe(device), {}).get(dtype_name(dtype), {})
        with contextlib.suppress(TypeError):  # of another version
            found = {name: Check(**row) for name, row in stored.items()}
        if not found or found.keys() < set(kernels_for_dtype(dtype)):
            found = check(device, dtype)
        _known[device, dtype] = found
    failed = [f"{name} {result.reason}" for name, result in found.items() if result.reason]
    if failed:
        warnings.warn(
            f"A slower exact algorithm replaces fused kernels for {dtype_name(dtype)}: "
            f"{'; '.join(failed)}. Please report this with: {describe(device)}",
            KernelWarning,
            stacklevel=2,
        )
    return found


def check(device: KernelDevice, dtype: torch.dtype) -> Checks:
    """Check all kernels for a dtype, and store the results unless memory was too short."""
    cases = CASES if device.is_interpreter else (*CASES, FULL_TILE_CASE)
    with torch.no_grad():
        examples = [make_example(case, dtype, device.device) for case in cases]
        checks = {name: check_kernel(name, examples) for name in kernels_for_dtype(dtype)}
    if not any("OutOfMemory" in result.reason for result in checks.values()):
        _store(device, dtype, checks)
    _known[device, dtype] = checks
    return checks


def forget() -> None:
    """Forget the results in this process, but not in the cache folder."""
    _known.clear()


def check_kernel(kernel: str, examples: Sequence[Example]) -> Check:
    """The largest error of a kernel over all examples, or why it failed."""
    start = time.perf_counter()
    worst = Check("", 0.0, 1.0)
    for example in examples:
        try:
            result, exact, terms = run_kernel(kernel, example)
            error = max_relative_error(result, exact)
        except Exception as exception:
            text = " ".join(f"{type(exception).__name__}: {exception}".split())[:500]
            return Check(f"raises {text}", seconds=time.perf_counter() - start)
        allowed = error_tolerance(example.problem.dtype, terms)
        if not error <= allowed:  # also true for NaN
            reason = f"is wrong: max relative error {error:.3g}, tolerance {allowed:.3g}"
            return Check(reason, error, allowed, time.perf_counter() - start)
        assert worst.error is not None
        assert worst.allowed is not None
        if error / allowed > worst.error / worst.allowed:
            worst = Check("", error, allowed)
    return Check("", worst.error, worst.allowed, time.perf_counter() - start)


def make_example(case: Case, dtype: torch.dtype, device: str) -> Example:
    """Make the inputs of a case, and its results with `ops.definition` in float64 on the CPU."""
    generator = torch.Generator().manual_seed(0)
    b, h, n, k, v, u = case.batch, case.heads, math.prod(case.grid), case.k, case.v, case.u

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu").to(dtype)

    rounded = [random(b, h, n, k), random(*case.sides, k, u), random(b, n, v, u)]
    rounded.append(random(b, h, n, v))
    content = random(b, k, v) if case.content else None
    with torch.enable_grad():
        q, r, values = (x.double().requires_grad_() for x in rounded[:3])
        output = definition.position_interaction(q, r, values, case.grid)
        if content is not None:
            output = output + q @ content.double().unsqueeze(1)
        dq, dr, dv = torch.autograd.grad(output, (q, r, values), rounded[3].double())
    place = surround_with_nan if case.inside_nan else torch.Tensor.clone
    queries, table, values, grad_output = (place(x.to(device)) for x in rounded)
    table = crop_to_grid(table, case.grid)
    context_size = min(n, math.prod(case.sides))
    return Example(
        (queries, table, values, grad_output),
        make_problem(queries, table, values, case.grid, False),
        (output.detach(), dq, crop_to_grid(dr, case.grid), dv),
        (context_size * k * u, context_size * v * u, b * h * n * v, context_size * h * k),
        None if content is None else place(content.to(device)),
    )


def surround_with_nan(x: Tensor) -> Tensor:
    """Return x as a slice of a larger tensor of NaN, with the same alignment of rows.

    Axes of size 1 are not extended, so that kernels accept values with u = 1 without a copy.
    """
    shape = [side + 16 if side > 1 else 1 for side in x.shape]
    view = torch.full(shape, torch.nan, dtype=x.dtype, device=x.device)
    for axis, side in enumerate(x.shape):
        view = view.narrow(axis, 8 if side > 1 else 0, side)
    return view.copy_(x)


def run_kernel(kernel: str, example: Example) -> tuple[Tensor, Tensor, int]:
    """The result of a kernel, the float64 result, and the number of terms per element."""
    queries, table, values, grad_output = example.inputs
    if kernel in _GRADIENT_INDICES:
        index = _GRADIENT_INDICES[kernel]
        needs = NeedsGrad(*(index == i for i in range(3)))
        order = "lambda" if kernel.endswith("lambda_order") else "query"
        inputs = grad_output, queries, table, values
        gradient = fused.gradients(order, *inputs, example.problem, needs, example.content)[index]
        assert gradient is not None
        return gradient, example.exact[1 + index], example.terms[1 + index]
    order = kernel.removeprefix("forward_").removesuffix("_order")
    inputs = queries, table, values
    output = fused.forward_in_order(order, *inputs, example.problem, example.content)
    return output, example.exact[0], example.terms[0]


def max_relative_error(result: Tensor, exact: Tensor) -> float:
    """Return max |result - exact| / RMS(exact); NaN if any element is NaN."""
    return ((result.cpu().double() - exact).abs().max() / exact.square().mean().sqrt()).item()


def error_tolerance(dtype: torch.dtype, terms: int) -> float:
    """Return the tolerance for `max_relative_error`, 8 (eps + eps32 sqrt(terms)).

    The intermediate result between two products and the final result are rounded to the dtype, by
    half an eps each, and float32 sums of `terms` products have an error of about
    eps32 sqrt(terms). The maximum over thousands of elements is a few times the typical error. TF32
    products, a missing term or a wrong element exceed the tolerance.
    """
    return 8 * (torch.finfo(dtype).eps + torch.finfo(torch.float32).eps * math.sqrt(terms))


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype, such as "float32"."""
    return str(dtype).removeprefix("torch.")


def describe(device: KernelDevice) -> str:
    """Device and versions, for warnings and as the key of stored results."""
    capability = ".".join(map(str, device.capability))
    return f"{device.name}, compute capability {capability}, {_versions()}"


@lru_cache
def _versions() -> str:
    from lambdanets import __version__

    source = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        source.update(path.read_bytes())
    triton = "of unknown version"
    for name in ("triton-windows", "pytorch-triton", "triton"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            triton = importlib.metadata.version(name)
    digest = source.hexdigest()[:8]
    return f"torch {torch.__version__}, triton {triton}, lambdanets {__version__} ({digest})"


def _results_file() -> Path:
    """In LAMBDANETS_CACHE, or in the user's cache folder. Raises OSError if there is no home."""
    folder = os.environ.get("LAMBDANETS_CACHE")
    return (Path(folder) if folder else user_cache_folder()) / "kernels.json"


def _read() -> dict[str, Any]:
    try:
        content = json.loads(_results_file().read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _store(device: KernelDevice, dtype: torch.dtype, checks: Checks) -> None:
    """Add results to the file, if it can be written."""
    with contextlib.suppress(OSError):
        _results_file().parent.mkdir(parents=True, exist_ok=True)
        content = _read()
        rows = {name: asdict(result) for name, result in checks.items()}
        content.setdefault(describe(device), {})[dtype_name(dtype)] = rows
        atomic_write(_results_file(), json.dumps(content, indent=1).encode())
