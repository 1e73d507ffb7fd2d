"""result.json: what a run reached, and on what."""

from pathlib import Path
from typing import Any, TypedDict

from torch import nn

from lambdanets.models.counting import count_parameters
from lambdanets.provenance import commit, hardware, versions
from lambdanets.records import read_json, write_json

RESULT = "result.json"


class Result(TypedDict):
    """What result.json is read for; a task's has more."""

    seconds: float
    images_per_second: float
    parameters: int
    unreadable: list[str]
    model_name: str
    data: str
    epochs: int


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
    write_json(folder / RESULT, result, 2)


def read_result(folder: Path, kind: type[Result]) -> dict[str, Any]:
    """The content of result.json. Raises InputError where it is not what `write_result` wrote.

    kind: what a task reads of it.
    """
    return {**read_json(folder / RESULT, kind, "remove it and go on with --resume to have it written again")}
