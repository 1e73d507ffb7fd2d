"""The default device, its free memory, and the provenance of results."""

import contextlib
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import psutil
import torch

import lambdanets
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


def provenance(**other_versions: str | None) -> dict[str, Any]:
    """Return the commit, versions, with those of other packages, and hardware, for files with results."""
    dependencies = ("torch", "torchvision", "timm", "lightning", "numpy", "pillow")
    versions = {
        "python": platform.python_version(),
        "lambdanets": lambdanets.__version__,
        **{name: importlib.metadata.version(name) for name in dependencies},
        **other_versions,
    }
    return {"commit": commit(), "versions": versions, "hardware": hardware()}


def commit() -> str | None:
    """Return the git commit of the source tree, with "-dirty" if it has changes; None for an installed package."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or None
    except OSError:  # git is not installed
        return None


def hardware() -> dict[str, Any]:
    """Return the operating system, CPU, cores, PyTorch threads, and the GPU if there is one."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines() if cpuinfo.is_file() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {
        "system": platform.system(),
        "processor": names[0] if names else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }
