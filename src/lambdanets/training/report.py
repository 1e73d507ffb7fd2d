"""result.json: the final metrics of a run, and their provenance."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from lambdanets.bounds import fits
from lambdanets.errors import InputError
from lambdanets.files import atomic_write, printable_bytes
from lambdanets.models.counting import count_parameters
from lambdanets.provenance import commit, hardware, versions

RESULT = "result.json"
# Fields that every result.json must have, and their types.
_REQUIRED = {
    "seconds": float,
    "images_per_second": float,
    "parameters": int,
    "unreadable": list,
    "model_name": str,
    "data": str,
    "epochs": int,
}


def write_result(folder: Path, *, seconds: float, trained_images: int, model: nn.Module, **fields: Any) -> None:
    """Write result.json: training time, throughput, the given fields, and versions, hardware and commit."""
    result = {
        "seconds": round(seconds, 2),
        "images_per_second": round(trained_images / seconds, 1) if seconds else 0.0,
        "parameters": count_parameters(model),
        **fields,
        "commit": commit(),
        "versions": versions(),
        "hardware": hardware(),
    }
    atomic_write(folder / RESULT, printable_bytes(json.dumps(result, indent=2, ensure_ascii=False) + "\n"))


def read_result(folder: Path, required: Mapping[str, Any]) -> dict[str, Any]:
    """Read result.json. Raises InputError if it is damaged. required: the task's fields and their types."""
    path = folder / RESULT
    try:
        result = json.loads(path.read_bytes())
        complete = all(fits(result[name], kind) for name, kind in (_REQUIRED | dict(required)).items())
    except (KeyError, TypeError, ValueError, RecursionError):
        complete = False
    if not complete:
        raise InputError(f"{path} is damaged; remove it and run the command with --resume to write it again")
    return result
