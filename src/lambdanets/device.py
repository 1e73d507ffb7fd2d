"""The default device, the precisions it supports, and its free memory."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import torch

from lambdanets.errors import InputError


def best_device() -> torch.device:
    """Return the GPU if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def resolve_device(device: str | torch.device | None) -> torch.device:
    """Return the device with this name, by default `best_device()`. Raises InputError if it does not exist."""
    if device is None:
        return best_device()
    gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    available = ["cpu", *(["cuda"] if gpus else []), *gpus]
    try:
        resolved = torch.device(device)
    except (RuntimeError, TypeError):
        resolved = None
    if resolved is None or (resolved.type != "cpu" and str(resolved) not in available):
        no_gpu = "" if gpus else "; PyTorch finds no GPU"
        raise InputError(f"device must be {' or '.join(available)}, got {str(device)!r}{no_gpu}")
    return resolved


def has_fast_bfloat16() -> bool:
    """Whether the default device is a GPU that supports bfloat16."""
    return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)


def check_precision(precision: str) -> None:
    """Raise InputError if the default device does not support a Lightning precision.

    16-mixed needs a GPU; bf16-mixed fails on machines whose CPU advertises AMX but does not permit it.
    """
    if precision == "32-true" or torch.cuda.is_available():
        return
    if precision == "16-mixed":
        raise InputError("precision 16-mixed needs a GPU; on a CPU choose bf16-mixed or 32-true")
    check_bfloat16("precision bf16-mixed", "precision 32-true")


def check_bfloat16(option: str, alternative: str) -> None:
    """Raise InputError if a bfloat16 matrix product kills its process: AMX is advertised but forbidden.

    option: what needs bfloat16, for the message. alternative: what to use instead.
    """
    product = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); x @ x"
    if subprocess.run([sys.executable, "-c", product], check=False).returncode:
        raise InputError(
            f"{option} needs AMX instructions, which this machine advertises but forbids; "
            f"set ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 in the environment, or use {alternative}"
        )


def free_memory(
    device: torch.device, cgroups: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")
) -> int:
    """Return the free memory in bytes: of the GPU, or the minimum over the machine and the cgroups of this process.

    cgroups: the cgroup file system, version 2.
    membership: the file that names the cgroup of this process.

    Reclaimable page cache counts as free.
    """
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return min([psutil.virtual_memory().available, *_free_in_cgroups(cgroups, membership)])


def _free_in_cgroups(cgroups: Path, membership: Path) -> Iterator[int]:
    """Yield the free memory of each cgroup of this process that has a limit, from its own up to the root."""
    lines = membership.read_text(encoding="utf-8", errors="replace").splitlines() if membership.is_file() else []
    own = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
    for folder in (cgroups / own, *(cgroups / own).parents):  # in a container only the root may be visible
        if folder.is_relative_to(cgroups) and ".." not in folder.parts:
            limit, used = _read_number(folder / "memory.max"), _read_number(folder / "memory.current")
            if limit is not None and used is not None:
                yield max(0, limit - used + (_read_number(folder / "memory.stat", "inactive_file") or 0))


def _read_number(file: Path, key: str | None = None) -> int | None:
    """Return the first number in a file, or the one after `key`; None if it is missing or "max" (no limit)."""
    try:
        fields = file.read_text(encoding="utf-8").split()
    except OSError:
        return None
    values = fields[fields.index(key) + 1 :] if key in fields else fields if key is None else []
    return int(values[0]) if values and values[0].isdigit() else None
