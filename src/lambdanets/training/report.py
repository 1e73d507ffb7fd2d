"""result.json: the final metrics of a run, and their provenance."""

from pathlib import Path
from typing import Any, TypedDict

from torch import nn

from lambdanets.models.counting import count_parameters
from lambdanets.provenance import commit, hardware, versions
from lambdanets.records import read_json, write_json

RESULT = "result.json"


class Result(TypedDict):
    """The fields of result.json that are read back; a task has more."""

    seconds: float
    images_per_second: float
    parameters: int
    unreadable: list[str]
    model_name: str
    data: str
    epochs: int


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
    write_json(folder / RESULT, result, 2)


def read_result(folder: Path, kind: type[Result]) -> dict[str, Any]:
    """Read result.json as the task's kind of result. Raises InputError if it is damaged."""
    return {**read_json(folder / RESULT, kind, "remove it and run the command with --resume to write it again")}
