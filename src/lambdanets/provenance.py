"""The provenance of a result: commit, versions and hardware."""

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
from lambdanets.folders import differences
from lambdanets.records import parse_json


def commit() -> str | None:
    """The git commit of the source tree, with "-dirty" if it has changes; None for an installed package."""
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
    """Versions of Python, this package and its main dependencies."""
    packages = ("torch", "torchvision", "timm", "lightning", "numpy", "pillow")
    ours = {"python": platform.python_version(), "lambdanets": lambdanets.__version__}
    return ours | {name: importlib.metadata.version(name) for name in packages}


def hardware() -> dict[str, Any]:
    """Operating system, CPU, cores, PyTorch threads, and the GPU if there is one."""
    cpuinfo = Path("/proc/cpuinfo")
    names = [line.split(":")[1].strip() for line in _lines(cpuinfo) if line.startswith("model name")]
    return {
        "system": platform.system(),
        "processor": names[0] if names else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


class _Measured(TypedDict):
    finished: bool


def read_unfinished(path: Path, expected: Mapping[str, Any]) -> dict[str, Any]:
    """Read the JSON file of interrupted measurements, to resume them.

    expected: values that the file must have, such as options, versions and hardware. Raises InputError if the
    measurements are finished, a value differs, or the file has other content.
    """
    advice = "choose another path with --out"
    content = parse_json(path.read_bytes(), _Measured, f"{path} has no measurements to resume", advice)
    if content["finished"]:
        raise InputError(f"{path} exists and is finished; {advice}, or remove it")
    if differing := differences(content, json.loads(json.dumps(expected, default=str))):
        raise InputError(f"{path} was started with {differing}; remove it, or {advice}")
    return {**content}


def _lines(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines() if path.is_file() else []
