"""Verifies the fused kernels on the user's device: "auto" uses only kernels that passed the self-test there.

At the first use of a device and dtype `self_test` runs in a subprocess, so that this process survives a crash, a hung
compiler, or an illegal memory access, which breaks the CUDA context. That costs the import of torch and the
compilation of a few dozen kernels, once: verdicts are cached in the user's cache folder, by device, compute capability,
versions of torch, triton and this package, and a hash of the kernels' source. Kernels that could not be tested, for
example for lack of memory, are not used in this process, and not cached.

An explicit algorithm="fused" needs no self-test.
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
    Verdict,
    dtype_name,
    run_self_test,
    time_limit,
)
from lambdanets.ops.position.rates import cache_folder

FORWARD = ("forward_query_order", "forward_lambda_order")
BACKWARD = ("queries_gradient", "values_gradient", "table_gradient")
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


Verdicts = Mapping[str, Verdict]

_KNOWN: dict[tuple[KernelDevice, torch.dtype], Verdicts] = {}
_LOCK = threading.RLock()


def kernels_for_dtype(dtype: torch.dtype) -> tuple[str, ...]:
    """The kernels for a dtype; the lambda order supports 16-bit dtypes only."""
    return tuple(name for name in (*FORWARD, *BACKWARD) if dtype.itemsize == 2 or name != "forward_lambda_order")


def get_verdicts(device: KernelDevice, dtype: torch.dtype) -> Verdicts:
    """The verdicts on all kernels of a dtype; runs the self-test if they are not cached. Other threads wait for it.

    Issues one KernelWarning if kernels fail, with what to report. Raises ValueError for an invalid time limit.
    """
    known = _KNOWN.get((device, dtype))
    if known is not None:
        return known
    with _LOCK:
        known = _KNOWN.get((device, dtype))
        if known is not None:
            return known
        cached, tested, untested = _read_or_test(device, dtype)
        _KNOWN[device, dtype] = known = {**cached, **tested, **untested}
    _warn(device, dtype, {name: verdict for name, verdict in tested.items() if verdict.reason}, untested)
    return known


def retest(device: KernelDevice, dtype: torch.dtype) -> Verdicts:
    """Run the self-test of all kernels of a dtype, ignoring cached verdicts, and cache the new ones. No warnings."""
    with _LOCK, _one_process_at_a_time():
        tested, untested = run_self_test(device, dtype, kernels_for_dtype(dtype))
        _store(device, dtype, tested)
        _KNOWN[device, dtype] = known = {**tested, **untested}
    return known


def store(device: KernelDevice, dtype: torch.dtype, verdicts: Verdicts) -> None:
    """Replace verdicts, in this process and in the cache folder."""
    with _LOCK, _one_process_at_a_time():
        _store(device, dtype, verdicts)
        _KNOWN[device, dtype] = {**_KNOWN.get((device, dtype), {}), **verdicts}


def clear() -> None:
    """Clear this process's verdicts, not the cache folder."""
    _KNOWN.clear()


def verdicts_file() -> Path:
    """The file of cached verdicts."""
    return cache_folder() / "kernels.json"


@lru_cache
def versions() -> str:
    """The versions of torch, triton and lambdanets and a hash of the kernels' source: cache key with the device."""
    from lambdanets import __version__

    source = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        source.update(path.read_bytes())
    return f"torch {torch.__version__}, triton {_triton()}, lambdanets {__version__} ({source.hexdigest()[:8]})"


def _triton() -> str:
    for name in ("triton", "pytorch-triton", "triton-windows"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return "of unknown version"


def describe(device: KernelDevice) -> str:
    """Device and versions, for warnings and as the cache key."""
    return f"{device.name}, compute capability {'.'.join(map(str, device.capability))}, {versions()}"


def read_verdicts(device: KernelDevice, dtype: torch.dtype) -> dict[str, Verdict]:
    """The cached verdicts for a device and dtype; unreadable or malformed ones are ignored."""
    found = _read_file().get(describe(device))
    rows = found.get(dtype_name(dtype)) if isinstance(found, dict) else None
    verdicts = {}
    for name, row in rows.items() if isinstance(rows, dict) else ():
        with contextlib.suppress(TypeError):
            verdict = Verdict(**row)
            if isinstance(verdict.reason, str):
                verdicts[name] = verdict
    return verdicts


def _read_file() -> dict[str, Any]:
    try:
        found = json.loads(verdicts_file().read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _store(device: KernelDevice, dtype: torch.dtype, verdicts: Verdicts) -> None:
    """Add verdicts to the file; without write permission they are valid in this process only."""
    with contextlib.suppress(OSError):
        verdicts_file().parent.mkdir(parents=True, exist_ok=True)
        found = _read_file()
        by_dtype = found.get(describe(device))
        by_dtype = by_dtype if isinstance(by_dtype, dict) else {}
        rows = {name: asdict(verdict) for name, verdict in {**read_verdicts(device, dtype), **verdicts}.items()}
        found[describe(device)] = by_dtype | {dtype_name(dtype): rows}
        atomic_write(verdicts_file(), json.dumps(found, indent=1).encode())


def _read_or_test(device: KernelDevice, dtype: torch.dtype) -> tuple[Verdicts, Verdicts, Verdicts]:
    """Cached verdicts, new ones, which are cached too, and those on untested kernels."""
    names = kernels_for_dtype(dtype)
    cached = read_verdicts(device, dtype)
    if cached.keys() >= set(names):
        return cached, {}, {}
    with _one_process_at_a_time():  # other processes of the node then read what the first one cached
        cached = read_verdicts(device, dtype)
        tested, untested = run_self_test(device, dtype, [name for name in names if name not in cached])
        _store(device, dtype, tested)
    return cached, tested, untested


@contextlib.contextmanager
def _one_process_at_a_time() -> Iterator[None]:
    """Lock the file of verdicts, waiting at most for the duration of a test; without a lock if there is no support."""
    from filelock import FileLock, Timeout

    with contextlib.ExitStack() as stack:
        # filelock raises NotImplementedError where a file system has no locks
        with contextlib.suppress(OSError, NotImplementedError, Timeout):
            path = verdicts_file()
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(FileLock(f"{path}.lock", timeout=SECONDS_TO_START + time_limit()))
        yield


def _warn(device: KernelDevice, dtype: torch.dtype, failed: Verdicts, untested: Verdicts) -> None:
    """One warning about all kernels that cannot be used."""
    sentences = []
    if failed:
        sentences += [f"in the self-test {_format_verdicts(failed)}", f"Please report this, with: {describe(device)}"]
    if untested:
        sentences.append(f"{_format_verdicts(untested)}; the next process tries again")
    if sentences:
        warnings.warn(
            f"Slower exact algorithms replace fused kernels for {dtype_name(dtype)}: "
            f"{'. '.join(sentences)}. `lambdanets calibrate --device {device.device}` tests all kernels again.",
            KernelWarning,
            stacklevel=2,
        )


def _format_verdicts(verdicts: Verdicts) -> str:
    return "; ".join(f"{name} {verdict.reason}" for name, verdict in verdicts.items())


def _new_lock_in_child() -> None:
    """Replace the lock after fork: another thread may have held it, and the child could never acquire it."""
    global _LOCK
    _LOCK = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock_in_child)
