"""What a benchmark leaves: results.json with every sample, tables for the terminal, and the figures drawn from both."""

import dataclasses
import importlib.metadata
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lambdanets.evidence.benchmark.layer import OURS
from lambdanets.evidence.benchmark.model import PLAIN
from lambdanets.evidence.benchmark.options import Common
from lambdanets.evidence.benchmark.race import NOT_REACHED, Row
from lambdanets.evidence.benchmark.timing import MORE_PASSES, NOISY, fit_exponent, geometric_mean, summarize
from lambdanets.files import atomic_write, printable_bytes
from lambdanets.provenance import commit, hardware, read_unfinished, versions
from lambdanets.text_tables import text_table

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
        rows = [dataclasses.asdict(row) | _statistics(row) | {"noisy": row.noisy} for row in self.rows]
        content = {
            "started": self.started,
            "finished": self.finished,
            "figures": figures(self.kind, self.rows),
            "rows": rows,
            **self._begun(),
        }
        text = json.dumps(_finite(content), indent=1, default=str, ensure_ascii=False)
        atomic_write(folder / RESULTS, printable_bytes(text + "\n"))

    def resume(self, folder: Path) -> None:
        """Take the finished cases of the same benchmark from its folder. Raises InputError where it is another."""
        content = read_unfinished(folder / RESULTS, self._begun())
        names = [field.name for field in dataclasses.fields(Row)]
        rows = [Row(**{name: row[name] for name in names}) for row in content["rows"]]
        for row in rows:
            row.errors = {name: float(value) for name, value in row.errors.items()}  # JSON has no infinity
        broken = [row.sizes for row in rows if row.left_out == NOT_REACHED]
        self.rows += [row for row in rows if row.sizes not in broken]
        self.started = content["started"]

    def _begun(self) -> dict[str, Any]:
        """What must be the same for rows to stand beside each other."""
        return {
            "kind": self.kind,
            "device": self.device,
            "options": dataclasses.asdict(dataclasses.replace(self.options, out=None)),  # a path says nothing to others
            "commit": commit(),
            "versions": versions() | rival_versions(),
            "hardware": hardware(),
        }


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

    Nothing is concluded from noisy times: they are left out, and a figure says of how many cases ("noisy").
    """
    if kind == "model":
        return _relative_throughput(rows)
    if kind == "scaling":
        return _exponents(rows)
    return _mean_ratios(rows, _median if kind == "layer" else _peak)


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
    noisy: dict[tuple[Any, ...], int] = {}
    ours = {tuple(row.sizes.items()): row for row in rows if row.contestant == OURS}
    for row, ratio in ratios(rows, measure, OURS):
        if row.contestant == OURS:
            continue
        key = (row.contestant, row.sizes["scope"], row.sizes["pass"])
        unsure = measure is _median and (row.noisy or ours[tuple(row.sizes.items())].noisy)
        noisy[key] = noisy.get(key, 0) + unsure
        groups.setdefault(key, []).extend([] if unsure else [ratio])
    return [
        {
            "contestant": name,
            "scope": scope,
            "pass": done,
            "geometric_mean_over_ours": geometric_mean(values) if values else None,
            "shapes": len(values),
            "noisy": noisy[name, scope, done],
        }
        for (name, scope, done), values in groups.items()
    ]


def _relative_throughput(rows: Sequence[Row]) -> list[dict[str, Any]]:
    plain = {row.sizes["pass"]: row for row in rows if row.contestant == PLAIN}
    found = []
    for row, ratio in ratios(rows, _median, PLAIN):
        noisy = row.noisy or plain[row.sizes["pass"]].noisy
        figure = {"contestant": row.contestant, "pass": row.sizes["pass"]}
        found.append(figure | {"throughput_relative_to_resnet50": None if noisy else 1 / ratio, "noisy": int(noisy)})
    return found


def _exponents(rows: Sequence[Row]) -> list[dict[str, Any]]:
    groups: dict[tuple[Any, ...], list[tuple[int, float]]] = {}
    noisy: dict[tuple[Any, ...], int] = {}
    for row in rows:
        if row.seconds:
            key = (row.contestant, row.sizes["setting"], row.sizes["pass"])
            points = groups.setdefault(key, [])
            points += [] if row.noisy else [(row.sizes["n"], summarize(row.seconds).median)]
            noisy[key] = noisy.get(key, 0) + row.noisy
    found = []
    for (name, setting, done), points in groups.items():
        if not points:
            continue
        larger = points[-max(2, math.ceil(len(points) / 2)) :]
        exponent = fit_exponent([n for n, _ in larger], [seconds for _, seconds in larger])
        if exponent is not None:
            figure = {"contestant": name, "setting": setting, "pass": done, "exponent_of_time": exponent}
            sizes = {"from_n": larger[0][0], "to_n": larger[-1][0], "noisy": noisy[name, setting, done]}
            found.append(figure | sizes)
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
            cells["quartiles"] = f"{lower * 1e3:.2f} to {upper * 1e3:.2f}{' (noisy)' * row.noisy}"
            cells["runs"] = str(len(row.seconds))
            cells["images/s"] = f"{batch_size / median:.1f}"
        if row.peak_bytes is not None:
            cells["peak MiB"] = f"{row.peak_bytes / 2**20:.2f}"
        if id(row) in over:
            unsure = kind != "memory" and (row.noisy or any(other.noisy for other in rows if other.contestant == base))
            cells[f"/ {base}"] = "noisy" if unsure else f"{over[id(row)]:.2f}"
        lines.append([cells.get(name, "") for name in header])
    empty = [i for i in range(1, len(header)) if not any(len(line) > 2 and line[i] for line in lines)]
    header = [name for i, name in enumerate(header) if i not in empty]
    lines = [line if len(line) == 2 else [cell for i, cell in enumerate(line) if i not in empty] for line in lines]
    return f"\n{title}\n{text_table([header, *lines])}"


def figures_table(found: Sequence[dict[str, Any]]) -> str:
    """The figures as a table for people, empty where there are none."""
    if not found:
        return ""
    header = [name.replace("_", " ") for name in found[0]]
    lines = [[_cell(value) for value in line.values()] for line in found]
    return f"\n{text_table([header, *lines])}"


def noise(rows: Sequence[Row]) -> str:
    """A sentence on the rows that are noisy, empty where none is."""
    timed = [row for row in rows if row.seconds]
    noisy = sum(row.noisy for row in timed)
    if not noisy:
        return ""
    return (
        f"noisy: {noisy} of {len(timed)} measurements, whose upper quartile is more than {NOISY} times the lower one "
        f"after up to {1 + MORE_PASSES} times as many runs. Nothing is concluded from them; end other work on this "
        "machine and measure again"
    )


def _cell(value: Any) -> str:
    if value is None:
        return "noisy"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


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
