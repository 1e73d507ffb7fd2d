"""The default device and its free memory."""

import contextlib
from pathlib import Path

import psutil
import torch

from lambdanets.errors import InputError


def resolve_device(device: str | torch.device | None = None) -> torch.device:
    """Return the device with this name, by default the GPU if there is one. Raises InputError if it does not exist."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    available = ["cpu", *(["cuda"] if gpus else []), *gpus]
    if str(device) not in available:
        no_gpu = "" if gpus else "; PyTorch finds no GPU"
        raise InputError(f"device must be {' or '.join(available)}, got {str(device)!r}{no_gpu}")
    return torch.device(device)


def free_memory(
    device: torch.device, cgroups: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")
) -> int:
    """Return the free memory in bytes: of the GPU, or the minimum over the machine and the cgroups of this process.

    Reclaimable page cache counts as free. cgroups: the cgroup file system, version 2. membership: the file that names
    the cgroup of this process.
    """
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = [psutil.virtual_memory().available]
    own = membership.read_text(errors="replace").strip().rpartition("0::/")[2] if membership.is_file() else ""
    for folder in (cgroups / own, *(cgroups / own).parents):  # in a container only the root may be visible
        with contextlib.suppress(OSError, ValueError):  # no cgroup, or "max": no limit
            limit, used = (int((folder / f"memory.{name}").read_text()) for name in ("max", "current"))
            statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            free.append(max(0, limit - used + int(statistics["inactive_file"])))
    return min(free)
