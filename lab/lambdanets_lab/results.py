"""Results of experiments: JSON files with provenance, and times of functions that run in turn."""

import importlib.metadata
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from lambdanets.device import provenance
from lambdanets.records import write_json
from lambdanets_lab.timing import summarize, time_interleaved

K = TypeVar("K")


def read_results(path: Path) -> Any:
    """Read the JSON file of an experiment."""
    return json.loads(path.read_text(encoding="utf-8"))


def write_results(path: Path, content: Mapping[str, Any], packages: Sequence[str] = ()) -> None:
    """Write a JSON file atomically, with commit, versions, also of other packages, and hardware."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {**content, **provenance(**{name: installed_version(name) for name in packages})})


def installed_version(package: str) -> str | None:
    """The installed version of a package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def time_in_turn(
    runs: Mapping[K, Callable[[], Any]],
    *,
    repeats: int,
    seconds: float,
    unit: float = 1.0,
    on_progress: Callable[[str], Any] = lambda message: None,
) -> dict[K, dict[str, float]]:
    """Time functions interleaved (`time_interleaved`); return median and quartiles of each, in units of seconds.

    unit: such as 1e-3 for milliseconds.
    """
    samples: dict[str, list[float]] = {str(name): [] for name in runs}
    named = {str(name): run for name, run in runs.items()}
    time_interleaved(named, samples, repeats=repeats, seconds=seconds, on_progress=on_progress)
    return {
        name: {key: round(value / unit, 5) for key, value in summarize(samples[str(name)])._asdict().items()}
        for name in runs
    }
