"""What a benchmark leaves: results.json with every sample, tables for the terminal, and the figures drawn from both."""

import dataclasses
import importlib.metadata
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lambdanets.benchmark.layer import OURS
from lambdanets.benchmark.model import PLAIN
from lambdanets.benchmark.options import Common
from lambdanets.benchmark.race import Row
from lambdanets.benchmark.timing import fit_exponent, geometric_mean, summarize
from lambdanets.columns import columns
from lambdanets.files import printable_bytes, write_whole
from lambdanets.provenance import commit, hardware, versions

RESULTS = "results.json"
RIVALS = ("lambda-networks", "pylocron", "natten")


@dataclass
class Report:
    """The rows of a benchmark of some kind, by some options; `finished` unless it was interrupted."""

    kind: str
    options: Common
    device: str
    started: str
    rows: list[Row] = field(default_factory=list)
    finished: bool = False

    def write(self, folder: Path) -> None:
        """Write results.json, whole or not at all."""
        rows = [dataclasses.asdict(row) | _statistics(row) for row in self.rows]
        content = {
            "kind": self.kind,
            "started": self.started,
            "finished": self.finished,
            "device": self.device,
            "options": dataclasses.asdict(dataclasses.replace(self.options, out=None)),  # a path says nothing to others
            "figures": figures(self.kind, self.rows),
            "rows": rows,
            "commit": commit(),
            "versions": versions() | rival_versions(),
            "hardware": hardware(),
        }
        text = json.dumps(_finite(content), indent=1, default=str, ensure_ascii=False)
        write_whole(folder / RESULTS, printable_bytes(text + "\n"))


def rival_versions() -> dict[str, str | None]:
    """Versions of the packages that are compared; None for one that is not installed."""
    found: dict[str, str | None] = {}
    for name in RIVALS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def figures(kind: str, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """What is concluded from the rows.

    layer, memory: for each scope and pass the geometric mean over the shapes of rival / ours. model: throughput
    relative to plain ResNet-50. scaling: the exponent of time against n, over the larger half of the sizes measured.
    """
    if kind == "model":
        return _relative_throughput(rows)
    if kind == "scaling":
        return _exponents(rows)
    return _mean_ratios(rows, _median if kind == "layer" else lambda row: row.peak_bytes)


def ratios(rows: Iterable[Row], measure: Callable[[Row], float | None], base: str) -> list[tuple[Row, float]]:
    """Each row with its measure over that of the base in the same case, where there are both."""
    rows = list(rows)
    of_base = {tuple(row.sizes.items()): measure(row) for row in rows if row.contestant == base}
    found = []
    for row in rows:
        own, other = measure(row), of_base.get(tuple(row.sizes.items()))
        if own and other:
            found.append((row, own / other))
    return found


def _mean_ratios(rows: Sequence[Row], measure: Callable[[Row], float | None]) -> list[dict[str, Any]]:
    groups: dict[tuple[Any, ...], list[float]] = {}
    for row, ratio in ratios(rows, measure, OURS):
        if row.contestant != OURS:
            groups.setdefault((row.contestant, row.sizes["scope"], row.sizes["pass"]), []).append(ratio)
    return [
        {
            "contestant": name,
            "scope": scope,
            "pass": done,
            "geometric_mean_over_ours": geometric_mean(values),
            "shapes": len(values),
        }
        for (name, scope, done), values in groups.items()
    ]


def _relative_throughput(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [
        {"contestant": row.contestant, "pass": row.sizes["pass"], "throughput_relative_to_resnet50": 1 / ratio}
        for row, ratio in ratios(rows, _median, PLAIN)
    ]


def _exponents(rows: Sequence[Row]) -> list[dict[str, Any]]:
    groups: dict[tuple[Any, ...], list[tuple[int, float]]] = {}
    for row in rows:
        if row.seconds:
            key = (row.contestant, row.sizes["setting"], row.sizes["pass"])
            groups.setdefault(key, []).append((row.sizes["n"], summarize(row.seconds).median))
    found = []
    for (name, setting, done), points in groups.items():
        larger = points[-max(2, math.ceil(len(points) / 2)) :]
        exponent = fit_exponent([n for n, _ in larger], [seconds for _, seconds in larger])
        if exponent is not None:
            figure = {"contestant": name, "setting": setting, "pass": done, "exponent_of_time": exponent}
            found.append(figure | {"from_n": larger[0][0], "to_n": larger[-1][0]})
    return found


def case_table(kind: str, rows: Sequence[Row], batch_size: int) -> str:
    """The rows of one case as a table for people."""
    base = PLAIN if kind == "model" else OURS
    title = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in rows[0].sizes.items())
    header = ["contestant", "median ms", "quartiles", "runs", "peak MiB", "error"]
    if kind == "model":
        header[4:4] = ["images/s"]
    over = {id(row): ratio for row, ratio in ratios(rows, _peak if kind == "memory" else _median, base)}
    if kind != "scaling":
        header.insert(-1, f"/ {base}")
    lines = []
    for row in rows:
        if row.left_out:
            lines.append([row.contestant, f"left out: {row.left_out}"])
            continue
        cells = {"contestant": row.contestant, "error": f"{max(row.errors.values(), default=0.0):.0e}"}
        if row.seconds:
            median, lower, upper = summarize(row.seconds)
            cells["median ms"] = f"{median * 1e3:.2f}"
            cells["quartiles"] = f"{lower * 1e3:.2f} to {upper * 1e3:.2f}"
            cells["runs"] = str(len(row.seconds))
            cells["images/s"] = f"{batch_size / median:.1f}"
        if row.peak_bytes is not None:
            cells["peak MiB"] = f"{row.peak_bytes / 2**20:.2f}"
        if id(row) in over:
            cells[f"/ {base}"] = f"{over[id(row)]:.2f}"
        lines.append([cells.get(name, "") for name in header])
    empty = [i for i in range(1, len(header)) if not any(len(line) > 2 and line[i] for line in lines)]
    header = [name for i, name in enumerate(header) if i not in empty]
    lines = [line if len(line) == 2 else [cell for i, cell in enumerate(line) if i not in empty] for line in lines]
    return f"\n{title}\n{columns([header, *lines])}"


def figures_table(found: Sequence[dict[str, Any]]) -> str:
    """The figures as a table for people, empty where there are none."""
    if not found:
        return ""
    header = [name.replace("_", " ") for name in found[0]]
    lines = [[f"{value:.2f}" if isinstance(value, float) else str(value) for value in line.values()] for line in found]
    return f"\n{columns([header, *lines])}"


def _statistics(row: Row) -> dict[str, float]:
    if not row.seconds:
        return {}
    median, lower, upper = summarize(row.seconds)
    return {"median_seconds": median, "lower_quartile_seconds": lower, "upper_quartile_seconds": upper}


def _median(row: Row) -> float | None:
    return summarize(row.seconds).median if row.seconds else None


def _peak(row: Row) -> float | None:
    return row.peak_bytes


def _finite(value: Any) -> Any:
    """JSON has no infinity: as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return value
