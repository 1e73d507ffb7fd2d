"""Checks the fused kernels on the user's GPU: "auto" uses only those that were right.

At the first use of a device and dtype, every kernel computes small problems, and the results are
compared with `ops.definition` in float64. This takes the time to compile about 20 kernels. Why
kernels failed is stored in the user's cache folder, by device, versions and a hash of the kernels'
source. `lambdanets kernels --device cuda` checks again. algorithm="fused" does not require a check.

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
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lambdanets.errors import KernelWarning, is_out_of_memory, one_line
from lambdanets.files import atomic_write, user_cache_folder
from lambdanets.ops import definition
from lambdanets.ops.geometry import crop_to_grid
from lambdanets.ops.position import fused
from lambdanets.ops.position.algorithm import NeedsGrad, Problem
from lambdanets.ops.position.fused.device import KernelDevice
from lambdanets.ops.position.fused.tiles import kernels_of_order
from lambdanets.ops.position.interact import make_problem

DTYPES = (torch.bfloat16, torch.float32)


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


@dataclass(frozen=True)
class Check:
    """The result of a kernel in a dtype on a device.

    reason: why the kernel failed, or "". error: largest relative error. allowed: its tolerance.
    seconds: duration, including compilation. Stored results have only the reason.
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
        if (device, dtype) in _known:
            return _known[device, dtype]
        stored = _read(device, dtype)
        if stored is not None:
            _known[device, dtype] = stored
            return stored
        checks = check(device, dtype)
    failed = [f"{name} {result.reason}" for name, result in checks.items() if result.reason]
    if failed:
        warnings.warn(
            f"A slower exact algorithm replaces fused kernels for {dtype_name(dtype)}: "
            f"{'; '.join(failed)}. After a change, `lambdanets kernels --device {device.device}` checks again. "
            f"Please report this with: {describe(device)}",
            KernelWarning,
            stacklevel=2,
        )
    return checks


def check(device: KernelDevice, dtype: torch.dtype) -> Checks:
    """Check all kernels for a dtype, and store the results.

    Raises OutOfMemoryError, which says nothing about the kernels.
    """
    from lambdanets.ops.position.choose import choose  # imports this package

    future = Future[Checks]()

    def run() -> None:
        try:
            future.set_result(_check_kernels(device, dtype))
        except BaseException as error:
            future.set_exception(error)

    # The caller may be in inference mode, autocast, vmap or a mode of fake tensors. A new thread is
    # not; as a daemon, it does not keep an interrupted process alive.
    threading.Thread(target=run, daemon=True).start()
    checks = future.result()
    _store(device, dtype, checks)
    _known[device, dtype] = checks
    choose.cache_clear()  # its plans know the previous results
    return checks


def _check_kernels(device: KernelDevice, dtype: torch.dtype) -> Checks:
    cases = CASES if device.is_interpreter else (*CASES, FULL_TILE_CASE)
    examples = [make_example(case, dtype, device.device) for case in cases]
    return {name: check_kernel(name, examples) for name in kernels_for_dtype(dtype)}


def check_kernel(kernel: str, examples: Sequence[Example]) -> Check:
    """The largest error of a kernel over all examples, or why it failed."""
    start, worst = time.perf_counter(), (0.0, 1.0)
    try:
        for example in examples:
            result, exact, terms = run_kernel(kernel, example)
            error = max_relative_error(result, exact)
            allowed = error_tolerance(example.problem.dtype, terms)
            if not error <= allowed:  # also true for NaN
                reason = f"is wrong: max relative error {error:.3g}, tolerance {allowed:.3g}"
                return Check(reason, error, allowed, time.perf_counter() - start)
            worst = max(worst, (error, allowed), key=lambda pair: pair[0] / pair[1])
    except Exception as exception:
        if is_out_of_memory(exception):
            raise
        reason = f"raises {type(exception).__name__}: {one_line(exception)}"[:500]
        return Check(reason, seconds=time.perf_counter() - start)
    return Check("", *worst, time.perf_counter() - start)


def make_example(case: Case, dtype: torch.dtype, device: str) -> Example:
    """Make the inputs of a case, and its results with `ops.definition` in float64 on the CPU."""
    generator = torch.Generator().manual_seed(0)
    b, h, n, k, v, u = case.batch, case.heads, math.prod(case.grid), case.k, case.v, case.u

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu").to(dtype)

    rounded = [random(b, h, n, k), random(*case.sides, k, u), random(b, n, v, u)]
    rounded.append(random(b, h, n, v))
    content = random(b, k, v) if case.content else None
    q, r, wide_values = (x.double().requires_grad_() for x in rounded[:3])
    output = definition.position_interaction(q, r, wide_values, case.grid)
    if content is not None:
        output = output + q @ content.double().unsqueeze(1)
    dq, dr, dv = torch.autograd.grad(output, (q, r, wide_values), rounded[3].double())
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
    problem, content = example.problem, example.content
    order = "lambda" if kernel.endswith("lambda_order") else "query"
    if kernel.startswith("forward"):
        output = fused.forward_in_order(order, queries, table, values, problem, content)
        return output, example.exact[0], example.terms[0]
    index = ("queries", "table", "values").index(kernel.split("_")[1])
    needs = NeedsGrad(*(index == i for i in range(3)))
    inputs = (grad_output, queries, table, values)
    gradient = fused.gradients(order, *inputs, problem, needs, content)[index]
    assert gradient is not None
    return gradient, example.exact[1 + index], example.terms[1 + index]


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
    """Device and versions, for warnings and for the key of stored results."""
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


def _key(device: KernelDevice, dtype: torch.dtype) -> str:
    return f"{dtype_name(dtype)}, {describe(device)}"


def _read_file() -> dict[str, Any]:
    try:
        content = json.loads(_results_file().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _read(device: KernelDevice, dtype: torch.dtype) -> Checks | None:
    """The stored results; None if some are missing, or were not written by this code."""
    try:
        rows = _read_file()[_key(device, dtype)]
        reasons = {name: rows[name] for name in kernels_for_dtype(dtype)}
    except (KeyError, TypeError):
        return None
    if not all(isinstance(reason, str) for reason in reasons.values()):
        return None
    return {name: Check(reason) for name, reason in reasons.items()}


def _store(device: KernelDevice, dtype: torch.dtype, checks: Checks) -> None:
    """Add results to the file, if it can be written."""
    with contextlib.suppress(OSError):
        path = _results_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        reasons = {name: result.reason for name, result in checks.items()}
        content = _read_file() | {_key(device, dtype): reasons}
        atomic_write(path, json.dumps(content, indent=1).encode())
