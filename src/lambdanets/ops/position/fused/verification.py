"""Verifies the fused kernels on the user's device: "auto" uses only kernels that passed the self-test.

At the first use of a device and dtype, `self_test` runs in a subprocess, so that this process survives a crash, a
compiler that hangs, or an illegal memory access, which breaks the CUDA context. This takes the time to import torch and
to compile a few dozen kernels. Results are stored in the user's cache folder by device, compute capability, versions
of torch, triton and this package, and a hash of the kernels' source. Kernels that could not be tested, for example
because the GPU is out of memory, are not used in this process; their results are not stored.

algorithm="fused" does not require the self-test.
"""

import contextlib
import hashlib
import importlib.metadata
import json
import os
import threading
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from lambdanets.errors import KernelWarning
from lambdanets.files import atomic_write
from lambdanets.ops.position.fused.device import KernelDevice
from lambdanets.ops.position.fused.self_test_process import (
    SECONDS_TO_START,
    SelfTestResult,
    dtype_name,
    run_self_test,
    time_limit,
)
from lambdanets.ops.position.fused.tiles import kernels_of_order
from lambdanets.ops.position.rates import cache_folder

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


SelfTestResults = Mapping[str, SelfTestResult]

_RESULTS: dict[tuple[KernelDevice, torch.dtype], SelfTestResults] = {}
_LOCK = threading.RLock()


def kernels_for_dtype(dtype: torch.dtype) -> tuple[str, ...]:
    """Return the kernels for a dtype; the lambda order supports only 16-bit dtypes."""
    orders = ("query", "lambda") if dtype.itemsize == 2 else ("query",)
    return (*(kernel for order in orders for kernel in kernels_of_order(order)), "grad_values", "grad_table")


def get_results(device: KernelDevice, dtype: torch.dtype) -> SelfTestResults:
    """Return the results of all kernels for a dtype; run the self-test if they are not cached.

    Other threads wait for the self-test. If kernels fail, issues one KernelWarning that says what to report. Raises
    ValueError for an invalid time limit.
    """
    results = _RESULTS.get((device, dtype))
    if results is not None:
        return results
    with _LOCK:
        results = _RESULTS.get((device, dtype))
        if results is not None:
            return results
        cached, tested, untested = _read_or_test(device, dtype)
        _RESULTS[device, dtype] = results = {**cached, **tested, **untested}
    _warn(device, dtype, {name: result for name, result in tested.items() if not result.passed}, untested)
    return results


def retest(device: KernelDevice, dtype: torch.dtype) -> SelfTestResults:
    """Run the self-test of all kernels for a dtype again and replace the cached results, without warnings."""
    with _LOCK, _results_file_lock():
        tested, untested = run_self_test(device, dtype, kernels_for_dtype(dtype))
        _store(device, dtype, tested)
        _RESULTS[device, dtype] = results = {**tested, **untested}
    return results


def store(device: KernelDevice, dtype: torch.dtype, results: SelfTestResults) -> None:
    """Replace results, in this process and in the cache folder."""
    with _LOCK, _results_file_lock():
        _store(device, dtype, results)
        _RESULTS[device, dtype] = {**_RESULTS.get((device, dtype), {}), **results}


def clear() -> None:
    """Clear the results in this process, but not in the cache folder."""
    _RESULTS.clear()


def results_file() -> Path:
    """Return the path of the file with cached results."""
    return cache_folder() / "kernels.json"


@lru_cache
def versions() -> str:
    """Return the versions of torch, triton and lambdanets and a hash of the kernels' source, for the cache key."""
    from lambdanets import __version__

    source = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        source.update(path.read_bytes())
    return f"torch {torch.__version__}, triton {_triton_version()}, lambdanets {__version__} ({source.hexdigest()[:8]})"


def _triton_version() -> str:
    for name in ("triton", "pytorch-triton", "triton-windows"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return "of unknown version"


def describe(device: KernelDevice) -> str:
    """Return device and versions, for warnings and as the cache key."""
    return f"{device.name}, compute capability {'.'.join(map(str, device.capability))}, {versions()}"


def read_results(device: KernelDevice, dtype: torch.dtype) -> dict[str, SelfTestResult]:
    """Read the cached results for a device and dtype, ignoring malformed ones."""
    by_dtype = _read_file().get(describe(device))
    rows = by_dtype.get(dtype_name(dtype)) if isinstance(by_dtype, dict) else None
    results = {}
    for name, row in rows.items() if isinstance(rows, dict) else ():
        with contextlib.suppress(TypeError):
            result = SelfTestResult(**row)
            if isinstance(result.reason, str):
                results[name] = result
    return results


def _read_file() -> dict[str, Any]:
    try:
        content = json.loads(results_file().read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _store(device: KernelDevice, dtype: torch.dtype, results: SelfTestResults) -> None:
    """Add results to the file, if it can be written."""
    with contextlib.suppress(OSError):
        results_file().parent.mkdir(parents=True, exist_ok=True)
        content = _read_file()
        by_dtype = content.get(describe(device))
        by_dtype = by_dtype if isinstance(by_dtype, dict) else {}
        rows = {name: asdict(result) for name, result in {**read_results(device, dtype), **results}.items()}
        content[describe(device)] = by_dtype | {dtype_name(dtype): rows}
        atomic_write(results_file(), json.dumps(content, indent=1).encode())


def _read_or_test(device: KernelDevice, dtype: torch.dtype) -> tuple[SelfTestResults, SelfTestResults, SelfTestResults]:
    """Return cached results, new results, which are stored, and results of untested kernels."""
    names = kernels_for_dtype(dtype)
    cached = read_results(device, dtype)
    if cached.keys() >= set(names):
        return cached, {}, {}
    with _results_file_lock():  # other processes of the node then read the results of the first
        cached = read_results(device, dtype)
        tested, untested = run_self_test(device, dtype, [name for name in names if name not in cached])
        _store(device, dtype, tested)
    return cached, tested, untested


@contextlib.contextmanager
def _results_file_lock() -> Iterator[None]:
    """Lock the results file if the file system supports locks; wait at most for the duration of a test."""
    from filelock import FileLock, Timeout

    with contextlib.ExitStack() as stack:
        # filelock raises NotImplementedError on file systems without locks
        with contextlib.suppress(OSError, NotImplementedError, Timeout):
            path = results_file()
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(FileLock(f"{path}.lock", timeout=SECONDS_TO_START + time_limit()))
        yield


def _warn(device: KernelDevice, dtype: torch.dtype, failed: SelfTestResults, untested: SelfTestResults) -> None:
    """Issue one warning about all kernels that cannot be used."""
    sentences = []
    if failed:
        sentences += [f"in the self-test {_format_results(failed)}", f"Please report this with: {describe(device)}"]
    if untested:
        sentences.append(f"{_format_results(untested)}; the next process tests again")
    if sentences:
        warnings.warn(
            f"Slower exact algorithms replace fused kernels for {dtype_name(dtype)}: "
            f"{'. '.join(sentences)}. `lambdanets calibrate --device {device.device}` tests all kernels again.",
            KernelWarning,
            stacklevel=2,
        )


def _format_results(results: SelfTestResults) -> str:
    return "; ".join(f"{name} {result.reason}" for name, result in results.items())


def _new_lock_in_child() -> None:
    """Replace the lock after fork, because another thread may have held it, and the child could never acquire it."""
    global _LOCK
    _LOCK = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock_in_child)
