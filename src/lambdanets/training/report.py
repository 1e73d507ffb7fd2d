"""result.json: what a run reached, and on what."""

import importlib.metadata
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch
from torch import nn

import lambdanets
from lambdanets.errors import InputError
from lambdanets.training.files import printable_bytes, write_whole
from lambdanets.training.recipe import fits

RESULT = "result.json"
# What result.json is read for.
_SHOWN = {
    "top1": float,
    "seconds": float,
    "images_per_second": float,
    "parameters": int,
    "unreadable": list,
    "model_name": str,
    "data": str,
    "epochs": int,
}


def write_result(folder: Path, *, top1: float, seconds: float, images: int, model: nn.Module, **more: Any) -> None:
    """Write result.json: seconds of training, images it took in, and the provenance of both."""
    result = {
        "top1": round(top1, 6),
        "seconds": round(seconds, 2),
        "images_per_second": round(images / seconds, 1) if seconds else 0.0,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        **more,
        "commit": commit(),
        "versions": versions(),
        "hardware": hardware(),
    }
    write_whole(folder / RESULT, printable_bytes(json.dumps(result, indent=2, ensure_ascii=False) + "\n"))


def read_result(folder: Path) -> dict[str, Any]:
    """The content of result.json. Raises InputError where it is not what `write_result` wrote."""
    path = folder / RESULT
    try:
        result = json.loads(path.read_bytes())
        whole = all(fits(result[name], kind) for name, kind in _SHOWN.items())
    except (KeyError, TypeError, ValueError, RecursionError):
        whole = False
    if not whole:
        raise InputError(f"{path} is damaged; remove it and go on with --resume to have it written again")
    return result


def commit() -> str | None:
    """The commit of the source tree this package runs from, marked if changed since; None for an installed copy."""
    here = Path(__file__).parent
    try:
        command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        tracked = subprocess.run(
            ["git", "-C", str(here), "ls-files", "--error-unmatch", "report.py"], capture_output=True, check=False
        )
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return answer.stdout.strip() or None if tracked.returncode == 0 else None


def versions() -> dict[str, str]:
    """Versions of what decides a result."""
    packages = ("torch", "torchvision", "timm", "lightning", "numpy", "pillow")
    ours = {"python": platform.python_version(), "lambdanets": lambdanets.__version__}
    return ours | {name: importlib.metadata.version(name) for name in packages}


def hardware() -> dict[str, Any]:
    """The processor, its threads as torch uses them, and the GPU if there is one."""
    cpuinfo = Path("/proc/cpuinfo")
    names = [line.split(":")[1].strip() for line in _lines(cpuinfo) if line.startswith("model name")]
    return {
        "system": platform.system(),
        "processor": names[0] if names else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _lines(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines() if path.is_file() else []
