"""The device a model runs on, whether it can do what is asked, and what memory is free on it."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import torch

from lambdanets.errors import InputError


def best_device() -> torch.device:
    """The GPU if there is one, else the processor."""
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
    """Raise InputError for float16 without a GPU, and for bfloat16 on machines that announce AMX and refuse its use."""
    if precision == "32-true" or torch.cuda.is_available():
        return
    if precision == "16-mixed":
        raise InputError("precision 16-mixed needs a GPU; on a processor choose bf16-mixed or 32-true")
    check_bfloat16("precision bf16-mixed", "precision 32-true")


def check_bfloat16(asked: str, instead: str) -> None:
    """Raise InputError where a bfloat16 product would end the process: on machines that announce AMX and refuse it."""
    product = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); x @ x"
    if subprocess.run([sys.executable, "-c", product], check=False).returncode == -signal.SIGILL:
        raise InputError(
            f"{asked} needs instructions (AMX) that this machine announces and refuses; "
            f"set ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 in the environment, or use {instead}"
        )


def free_memory(
    device: torch.device, cgroups: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")
) -> int:
    """Bytes of memory that may be taken: of the GPU, or of the machine and of each cgroup that this process is in.

    The page cache that the kernel gives back on demand counts as free. cgroups, membership: where Linux shows its
    control groups (version 2 or 1), and which of them this process is in.
    """
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return min([psutil.virtual_memory().available, *_left_in_cgroups(cgroups, membership)])


def _left_in_cgroups(cgroups: Path, membership: Path) -> Iterator[int]:
    """What is left below the limit of each cgroup of this process, from its own up to the root."""
    lines = membership.read_text().splitlines() if membership.is_file() else []
    for number, controllers, path in (line.split(":", 2) for line in lines):
        if number == "0":
            root, (limit, used, cache) = cgroups, _CGROUP2
        elif "memory" in controllers.split(","):
            root, (limit, used, cache) = cgroups / "memory", _CGROUP1
        else:
            continue
        own = root / path.lstrip("/")
        for folder in (own, *own.parents):  # of a container, its root alone may be shown
            if folder.is_relative_to(root) and ".." not in folder.parts:
                most, now = _number(folder / limit), _number(folder / used)
                if most is not None and now is not None:
                    yield max(0, most - now + (_number(folder / "memory.stat", cache) or 0))


# The names of a cgroup's limit, of what it uses, and of the line of memory.stat with the page cache that is not in use.
_CGROUP2 = ("memory.max", "memory.current", "inactive_file")
_CGROUP1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _number(file: Path, name: str | None = None) -> int | None:
    """The number in a file, or after a name in it; None where there is none, as of a limit that is max."""
    try:
        words = file.read_text().split()
    except OSError:
        return None
    found = words[words.index(name) + 1 :] if name in words else words if name is None else []
    return int(found[0]) if found and found[0].isdigit() else None
