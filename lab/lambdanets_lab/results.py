"""Results of experiments: JSON files with provenance."""

import importlib.metadata
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lambdanets.provenance import provenance
from lambdanets.records import write_json


def read_results(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def write_results(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file atomically, with commit, versions and hardware."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {**content, **provenance()})


def installed_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
