"""result.json: what a run reached, and on what."""

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
# What every result.json is read for.
_SHOWN = {
    "seconds": float,
    "images_per_second": float,
    "parameters": int,
    "unreadable": list,
    "model_name": str,
    "data": str,
    "epochs": int,
}


def write_result(folder: Path, *, seconds: float, seen: int, model: nn.Module, **more: Any) -> None:
    """Write result.json: seconds of training, images seen in them, and the provenance of both."""
    result = {
        "seconds": round(seconds, 2),
        "images_per_second": round(seen / seconds, 1) if seconds else 0.0,
        "parameters": count_parameters(model),
        **more,
        "commit": commit(),
        "versions": versions(),
        "hardware": hardware(),
    }
    atomic_write(folder / RESULT, printable_bytes(json.dumps(result, indent=2, ensure_ascii=False) + "\n"))


def read_result(folder: Path, shown: Mapping[str, Any]) -> dict[str, Any]:
    """The content of result.json. Raises InputError where it is not what `write_result` wrote.

    shown: what a task reads of it, and its type, beside what is read of every task's.
    """
    path = folder / RESULT
    try:
        result = json.loads(path.read_bytes())
        whole = all(fits(result[name], kind) for name, kind in (_SHOWN | dict(shown)).items())
    except (KeyError, TypeError, ValueError, RecursionError):
        whole = False
    if not whole:
        raise InputError(f"{path} is damaged; remove it and go on with --resume to have it written again")
    return result
