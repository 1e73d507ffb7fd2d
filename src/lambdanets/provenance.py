"""Provenance of results: commit, versions and hardware."""

import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

import torch

import lambdanets
from lambdanets.errors import InputError
from lambdanets.folders import describe_differences
from lambdanets.records import parse_json


def commit() -> str | None:
    """Return the git commit of the source tree, with "-dirty" if it has changes; None for an installed package."""
    source = Path(__file__).parent
    try:
        command = ["git", "-C", str(source), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        tracked = subprocess.run(
            ["git", "-C", str(source), "ls-files", "--error-unmatch", "provenance.py"],
            capture_output=True,
            check=False,
        )
        described = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return described.stdout.strip() or None if tracked.returncode == 0 else None


def versions() -> dict[str, str]:
    """Return the versions of Python, this package and its main dependencies."""
    dependencies = ("torch", "torchvision", "timm", "lightning", "numpy", "pillow")
    own = {"python": platform.python_version(), "lambdanets": lambdanets.__version__}
    return own | {name: importlib.metadata.version(name) for name in dependencies}


def hardware() -> dict[str, Any]:
    """Return the operating system, CPU, cores, PyTorch threads, and the GPU if there is one."""
    cpuinfo = _read_lines(Path("/proc/cpuinfo"))
    names = [line.split(":")[1].strip() for line in cpuinfo if line.startswith("model name")]
    return {
        "system": platform.system(),
        "processor": names[0] if names else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


class _Measurements(TypedDict):
    finished: bool


def read_unfinished(path: Path, expected: Mapping[str, Any]) -> dict[str, Any]:
    """Read the JSON file of interrupted measurements, to resume them.

    expected: values that must be equal in the file, such as options, versions and hardware.

    Raises InputError if the measurements are finished, a value differs, or the file has other content.
    """
    advice = "choose another path with --out"
    content = parse_json(path.read_bytes(), _Measurements, f"{path} has no measurements to resume", advice)
    if content["finished"]:
        raise InputError(f"{path} exists and is finished; {advice}, or remove it")
    if differing := describe_differences(content, json.loads(json.dumps(expected, default=str))):
        raise InputError(f"{path} was started with {differing}; remove it, or {advice}")
    return {**content}


def _read_lines(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines() if path.is_file() else []
