"""The default device, its support of precisions, and its free memory."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import torch

from lambdanets.errors import InputError


def best_device() -> torch.device:
    """The GPU if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def as_device(device: str | torch.device | None) -> torch.device:
    """The device of this name, by default the best. Raises InputError for one that is not there."""
    if device is None:
        return best_device()
    gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    available = ["cpu", *(["cuda"] if gpus else []), *gpus]
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        found = None
    if found is None or (found.type != "cpu" and str(found) not in available):
        without = "" if gpus else "; PyTorch finds no GPU"
        raise InputError(f"device must be {' or '.join(available)}, got {str(device)!r}{without}")
    return found


def has_fast_bfloat16() -> bool:
    """Whether the device is a GPU with bfloat16."""
    return torch.cuda.is_available() and torch.cuda.is_bf16_supported()


def check_precision(precision: str) -> None:
    """Raise InputError for float16 without a GPU, and for bfloat16 on machines that advertise AMX but forbid it."""
    if precision == "32-true" or torch.cuda.is_available():
        return
    if precision == "16-mixed":
        raise InputError("precision 16-mixed needs a GPU; on a CPU choose bf16-mixed or 32-true")
    check_bfloat16("precision bf16-mixed", "precision 32-true")


def check_bfloat16(option: str, alternative: str) -> None:
    """Raise InputError if a bfloat16 product kills the process by SIGILL, because AMX is advertised but forbidden."""
    product = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); x @ x"
    if subprocess.run([sys.executable, "-c", product], check=False).returncode == -signal.SIGILL:
        raise InputError(
            f"{option} needs AMX instructions, which this machine advertises but forbids; "
            f"set ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 in the environment, or use {alternative}"
        )


def free_memory(
    device: torch.device, cgroups: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")
) -> int:
    """Free memory in bytes: of the GPU, or the minimum over the machine and the cgroups of this process.

    Reclaimable page cache counts as free. cgroups, membership: the cgroup file system (version 2 or 1), and the file
    that lists the cgroups of this process.
    """
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return min([psutil.virtual_memory().available, *_left_in_cgroups(cgroups, membership)])


def _left_in_cgroups(cgroups: Path, membership: Path) -> Iterator[int]:
    """Free memory of each cgroup of this process that has a limit, from its own up to the root."""
    lines = membership.read_text().splitlines() if membership.is_file() else []
    for number, controllers, path in (line.split(":", 2) for line in lines):
        if number == "0":
            root, (limit, used, cache) = cgroups, _CGROUP2
        elif "memory" in controllers.split(","):
            root, (limit, used, cache) = cgroups / "memory", _CGROUP1
        else:
            continue
        own = root / path.lstrip("/")
        for folder in (own, *own.parents):  # in a container only the root may be visible
            if folder.is_relative_to(root) and ".." not in folder.parts:
                maximum, current = _number(folder / limit), _number(folder / used)
                if maximum is not None and current is not None:
                    yield max(0, maximum - current + (_number(folder / "memory.stat", cache) or 0))


# File names of a cgroup's limit and usage, and the key in memory.stat of its reclaimable page cache.
_CGROUP2 = ("memory.max", "memory.current", "inactive_file")
_CGROUP1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _number(file: Path, key: str | None = None) -> int | None:
    """The number in a file, or after a key in it; None if there is none, as for a limit of "max"."""
    try:
        fields = file.read_text().split()
    except OSError:
        return None
    found = fields[fields.index(key) + 1 :] if key in fields else fields if key is None else []
    return int(found[0]) if found and found[0].isdigit() else None
