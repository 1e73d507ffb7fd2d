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
    here = Path(__file__).parent
    try:
        command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        tracked = subprocess.run(
            ["git", "-C", str(here), "ls-files", "--error-unmatch", "provenance.py"], capture_output=True, check=False
        )
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return answer.stdout.strip() or None if tracked.returncode == 0 else None


def versions() -> dict[str, str]:
    """Versions of Python, this package and those that results depend on."""
    packages = ("torch", "torchvision", "timm", "lightning", "numpy", "pillow")
    ours = {"python": platform.python_version(), "lambdanets": lambdanets.__version__}
    return ours | {name: importlib.metadata.version(name) for name in packages}


def hardware() -> dict[str, Any]:
    """The system, processor, cores, torch's number of threads, and the GPU if there is one."""
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


def read_unfinished(path: Path, begun: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a JSON file of interrupted measurements, to resume them.

    begun: values that the file must have, by name, such as options, versions and hardware. Raises InputError where the
    measurements are finished, a value differs, or the file holds something else.
    """
    advice = "name another place with --out"
    content = parse_json(path.read_bytes(), _Measured, f"{path} holds no measurements to resume", advice)
    if content["finished"]:
        raise InputError(f"{path} exists and is finished; {advice}, or remove it")
    if differ := differences(content, json.loads(json.dumps(begun, default=str))):
        raise InputError(f"{path} was begun with {differ}; remove it, or {advice}")
    return {**content}


def _lines(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines() if path.is_file() else []
