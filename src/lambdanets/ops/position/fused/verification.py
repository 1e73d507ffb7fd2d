"""Which fused kernels may be chosen on a device: those that passed a self-test there.

At the first use of a device and a dtype `self_test` runs in a process of its own, so that a crash, an illegal memory
access, which spoils a CUDA context for good, or a compiler that hangs leaves this process as it was. That costs the
import of torch and the compilation of a few dozen kernels, once: verdicts are kept in the user's cache folder, by
device, compute capability, versions of torch, triton and this package, and the kernels' source. What cannot be tested
at all, for want of memory say, is not kept, and is not used by this process.

An explicit algorithm="fused" asks nothing of this.
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


def kernels_of(dtype: torch.dtype) -> tuple[str, ...]:
    """The kernels that serve a dtype; the lambda order is for 16 bits alone."""
    return tuple(name for name in (*FORWARD, *BACKWARD) if dtype.itemsize == 2 or name != "forward_lambda_order")


def verdicts_of(device: KernelDevice, dtype: torch.dtype) -> Verdicts:
    """The verdicts on all kernels of a dtype, tested now where they are not known; one thread tests, others wait.

    Where kernels fail, one KernelWarning says what to report. Raises ValueError for a time limit that is no number.
    """
    known = _KNOWN.get((device, dtype))
    if known is not None:
        return known
    with _LOCK:
        known = _KNOWN.get((device, dtype))
        if known is not None:
            return known
        found, kept, unkept = _read_or_test(device, dtype)
        _KNOWN[device, dtype] = known = {**found, **kept, **unkept}
    _warn(device, dtype, {name: verdict for name, verdict in kept.items() if verdict.reason}, unkept)
    return known


def test_anew(device: KernelDevice, dtype: torch.dtype) -> Verdicts:
    """The verdicts on all kernels of a dtype, tested now whatever is known, and kept. Warns of nothing."""
    with _LOCK, _one_process_at_a_time():
        kept, unkept = run_self_test(device, dtype, kernels_of(dtype))
        _keep(device, dtype, kept)
        _KNOWN[device, dtype] = known = {**kept, **unkept}
    return known


def keep(device: KernelDevice, dtype: torch.dtype, verdicts: Verdicts) -> None:
    """Put verdicts found elsewhere in the place of those known, here and in the cache folder."""
    with _LOCK, _one_process_at_a_time():
        _keep(device, dtype, verdicts)
        _KNOWN[device, dtype] = {**_KNOWN.get((device, dtype), {}), **verdicts}


def forget() -> None:
    """Forget what this process knows; the cache folder keeps what it has."""
    _KNOWN.clear()


def verdicts_file() -> Path:
    """Where verdicts are kept."""
    return cache_folder() / "kernels.json"


@lru_cache
def versions() -> str:
    """What a verdict holds for beside the device: versions of torch, triton and lambdanets, and the kernels' source."""
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


def described(device: KernelDevice) -> str:
    """The device and versions, as they are reported and kept."""
    return f"{device.name}, compute capability {'.'.join(map(str, device.capability))}, {versions()}"


def read_verdicts(device: KernelDevice, dtype: torch.dtype) -> dict[str, Verdict]:
    """The verdicts that are kept for a device and dtype; what cannot be read or understood is as if not there."""
    found = _read_file().get(described(device))
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


def _keep(device: KernelDevice, dtype: torch.dtype, verdicts: Verdicts) -> None:
    """Add to the file; a folder that cannot be written leaves the verdicts to this process."""
    with contextlib.suppress(OSError):
        verdicts_file().parent.mkdir(parents=True, exist_ok=True)
        found = _read_file()
        of_device = found.get(described(device))
        of_device = of_device if isinstance(of_device, dict) else {}
        rows = {name: asdict(verdict) for name, verdict in {**read_verdicts(device, dtype), **verdicts}.items()}
        found[described(device)] = of_device | {dtype_name(dtype): rows}
        atomic_write(verdicts_file(), json.dumps(found, indent=1).encode())


def _read_or_test(device: KernelDevice, dtype: torch.dtype) -> tuple[Verdicts, Verdicts, Verdicts]:
    """The verdicts that were kept, those made now and kept, and those made now for this process alone."""
    names = kernels_of(dtype)
    found = read_verdicts(device, dtype)
    if found.keys() >= set(names):
        return found, {}, {}
    with _one_process_at_a_time():  # the others of a node find what the first has kept
        found = read_verdicts(device, dtype)
        kept, unkept = run_self_test(device, dtype, [name for name in names if name not in found])
        _keep(device, dtype, kept)
    return found, kept, unkept


@contextlib.contextmanager
def _one_process_at_a_time() -> Iterator[None]:
    """Hold a lock on the verdicts, for at most as long as a test may take; go without where there can be none."""
    from filelock import FileLock, Timeout

    with contextlib.ExitStack() as stack:
        # filelock raises NotImplementedError where a file system has no locks
        with contextlib.suppress(OSError, NotImplementedError, Timeout):
            path = verdicts_file()
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(FileLock(f"{path}.lock", timeout=SECONDS_TO_START + time_limit()))
        yield


def _warn(device: KernelDevice, dtype: torch.dtype, failed: Verdicts, untested: Verdicts) -> None:
    """One warning on all that cannot be used."""
    sentences = []
    if failed:
        sentences += [f"in the self-test {_each(failed)}", f"Please report this, with: {described(device)}"]
    if untested:
        sentences.append(f"{_each(untested)}; the next process tries again")
    if sentences:
        warnings.warn(
            f"Plain algorithms, exact and slower, take the place of fused kernels for {dtype_name(dtype)}: "
            f"{'. '.join(sentences)}. `lambdanets calibrate --device {device.device}` tests all kernels again.",
            KernelWarning,
            stacklevel=2,
        )


def _each(verdicts: Verdicts) -> str:
    return "; ".join(f"{name} {verdict.reason}" for name, verdict in verdicts.items())


def _new_lock_in_child() -> None:
    """A fork while another thread tests must not leave a lock that nobody releases."""
    global _LOCK
    _LOCK = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock_in_child)
