"""Reads and writes result.json: the final metrics of a run and their provenance."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from lambdanets.provenance import provenance
from lambdanets.records import parse_json, write_json

RESULT = "result.json"


@dataclass(frozen=True)
class Result:
    """Fields of result.json that are read again. Each task adds its own."""

    seconds: float
    images_per_second: float
    parameters: int
    unreadable: list[str]
    model_name: str
    data: str
    epochs: int
    summary: list[str]  # the scores, as they are printed


def write_result(folder: Path, *, seconds: float, images_seen: int, model: nn.Module, **fields: Any) -> None:
    """Write result.json: training time, throughput, `fields`, commit, versions and hardware."""
    result = {
        "seconds": round(seconds, 2),
        "images_per_second": round(images_seen / seconds, 1) if seconds else 0.0,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        **fields,
        **provenance(),
    }
    write_json(folder / RESULT, result, 2)


def read_result(folder: Path) -> dict[str, Any]:
    """Read result.json. Raises InputError if it is damaged."""
    content = (folder / RESULT).read_bytes()
    advice = "remove it and run the command with --resume to write it again"
    parse_json(content, Result, f"{folder / RESULT} is damaged", advice)
    fields: dict[str, Any] = json.loads(content)
    return fields
