"""The provenance of results: commit, versions and hardware."""

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

import lambdanets


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
