"""Write results.json with every sample, aggregate results over cases, and format tables."""

import dataclasses
import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lambdanets.evidence.benchmark.layer import OURS
from lambdanets.evidence.benchmark.measurement import NOT_REACHED, Row
from lambdanets.evidence.benchmark.model import PLAIN
from lambdanets.evidence.benchmark.options import CommonOptions
from lambdanets.evidence.benchmark.peers import installed_version
from lambdanets.evidence.benchmark.timing import MAX_EXTRA_PASSES, NOISY_RATIO, fit_exponent, summarize
from lambdanets.files import atomic_write, encode_utf8
from lambdanets.provenance import commit, hardware, read_unfinished, versions
from lambdanets.text_tables import text_table

RESULTS = "results.json"
BASELINE_PACKAGES = ("lambda-networks", "pylocron", "natten")


@dataclass
class Report:
    """The settings and results of a benchmark. finished: False if it was interrupted."""

    kind: str
    options: CommonOptions
    device: str
    started: str
    rows: list[Row] = field(default_factory=list)
    finished: bool = False

    def write(self, folder: Path) -> None:
        """Write results.json atomically."""
        rows = [dataclasses.asdict(row) | _statistics(row) | {"noisy": row.noisy} for row in self.rows]
        content = {
            "started": self.started,
            "finished": self.finished,
            "figures": aggregate(self.kind, self.rows),
            "rows": rows,
            **self._settings(),
        }
        text = json.dumps(_json_safe(content), indent=1, default=str, ensure_ascii=False)
        atomic_write(folder / RESULTS, encode_utf8(text + "\n"))

    def resume(self, folder: Path) -> None:
        """Load the finished cases from a folder. Raises InputError if its benchmark has other settings."""
        content = read_unfinished(folder / RESULTS, self._settings())
        rows = read_rows(content)
        unfinished = [row.sizes for row in rows if row.skip_reason == NOT_REACHED]
        self.rows += [row for row in rows if row.sizes not in unfinished]
        self.started = content["started"]

    def _settings(self) -> dict[str, Any]:
        """Settings that must be equal to resume a benchmark."""
        return {
            "kind": self.kind,
            "device": self.device,
            "options": dataclasses.asdict(dataclasses.replace(self.options, out=None)),  # without local paths
            "commit": commit(),
            "versions": versions() | baseline_versions(),
            "hardware": hardware(),
        }


def read_rows(content: Mapping[str, Any]) -> list[Row]:
    """Make rows from the content of results.json."""
    names = [field.name for field in dataclasses.fields(Row)]
    rows = [Row(**{name: row[name] for name in names if name in row}) for row in content["rows"]]
    for row in rows:
        row.errors = {name: float(value) for name, value in row.errors.items()}  # JSON has no infinity
    return rows


def baseline_versions() -> dict[str, str | None]:
    """Return the versions of the baselines' packages; None for those not installed."""
    return {name: installed_version(name) for name in BASELINE_PACKAGES}


def aggregate(kind: str, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Aggregate over the cases.

    layer, memory: geometric mean over shapes of baseline / ours, per scope and pass. model: throughput relative to
    plain ResNet-50. scaling: the exponent of time against n, fitted to the larger half of the measured sizes.

    Noisy times are excluded; "noisy" counts them.
    """
    if kind == "model":
        return _relative_throughput(rows)
    if kind == "scaling":
        return _fit_exponents(rows)
    return _mean_ratios(rows, median_seconds if kind == "layer" else peak_bytes)


def ratios(rows: Iterable[Row], measure: Callable[[Row], float | None], base: str) -> list[tuple[Row, float]]:
    """Pair each row with the ratio of its measure to that of the candidate `base` in the same case, if both exist."""
    rows = list(rows)
    denominators = {tuple(row.sizes.items()): measure(row) for row in rows if row.candidate == base}
    pairs = []
    for row in rows:
        numerator, denominator = measure(row), denominators.get(tuple(row.sizes.items()))
        if numerator and denominator:
            pairs.append((row, numerator / denominator))
    return pairs


def _mean_ratios(rows: Sequence[Row], measure: Callable[[Row], float | None]) -> list[dict[str, Any]]:
    groups: dict[tuple[Any, ...], list[float]] = {}
    noisy: dict[tuple[Any, ...], int] = {}
    ours = {tuple(row.sizes.items()): row for row in rows if row.candidate == OURS}
    for row, ratio in ratios(rows, measure, OURS):
        if row.candidate == OURS:
            continue
        key = (row.candidate, row.sizes["scope"], row.sizes["pass"])
        is_noisy = measure is median_seconds and (row.noisy or ours[tuple(row.sizes.items())].noisy)
        noisy[key] = noisy.get(key, 0) + is_noisy
        groups.setdefault(key, []).extend([] if is_noisy else [ratio])
    return [
        {
            "candidate": name,
            "scope": scope,
            "pass": phase,
            "geometric_mean_over_ours": statistics.geometric_mean(values) if values else None,
            "shapes": len(values),
            "noisy": noisy[name, scope, phase],
        }
        for (name, scope, phase), values in groups.items()
    ]


def _relative_throughput(rows: Sequence[Row]) -> list[dict[str, Any]]:
    plain = {row.sizes["pass"]: row for row in rows if row.candidate == PLAIN}
    entries = []
    for row, ratio in ratios(rows, median_seconds, PLAIN):
        noisy = row.noisy or plain[row.sizes["pass"]].noisy
        entry = {"candidate": row.candidate, "pass": row.sizes["pass"]}
        entries.append(entry | {"throughput_relative_to_resnet50": None if noisy else 1 / ratio, "noisy": int(noisy)})
    return entries


def _fit_exponents(rows: Sequence[Row]) -> list[dict[str, Any]]:
    groups: dict[tuple[Any, ...], list[tuple[int, float]]] = {}
    noisy: dict[tuple[Any, ...], int] = {}
    for row in rows:
        if row.seconds:
            key = (row.candidate, row.sizes["setting"], row.sizes["pass"])
            points = groups.setdefault(key, [])
            points += [] if row.noisy else [(row.sizes["n"], summarize(row.seconds).median)]
            noisy[key] = noisy.get(key, 0) + row.noisy
    entries = []
    for (name, setting, phase), points in groups.items():
        if not points:
            continue
        larger = points[-max(2, math.ceil(len(points) / 2)) :]
        exponent = fit_exponent([n for n, _ in larger], [seconds for _, seconds in larger])
        if exponent is not None:
            entry = {"candidate": name, "setting": setting, "pass": phase, "exponent_of_time": exponent}
            sizes = {"from_n": larger[0][0], "to_n": larger[-1][0], "noisy": noisy[name, setting, phase]}
            entries.append(entry | sizes)
    return entries


def case_table(kind: str, rows: Sequence[Row], batch_size: int) -> str:
    """Format the rows of one case as a text table."""
    base = PLAIN if kind == "model" else OURS
    title = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in rows[0].sizes.items())
    header = ["candidate", "median ms", "quartiles", "runs", "peak MiB", "error"]
    if kind == "model":
        header[4:4] = ["images/s"]
    ratio_by_id = {
        id(row): ratio for row, ratio in ratios(rows, peak_bytes if kind == "memory" else median_seconds, base)
    }
    if kind != "scaling":
        header.insert(-1, f"/ {base}")
    lines = []
    for row in rows:
        if row.skip_reason:
            lines.append([row.candidate, f"skipped: {row.skip_reason}"])
            continue
        cells = {"candidate": row.candidate, "error": f"{max(row.errors.values(), default=0.0):.0e}"}
        if row.seconds:
            median, lower, upper = summarize(row.seconds)
            cells["median ms"] = f"{median * 1e3:.2f}"
            cells["quartiles"] = f"{lower * 1e3:.2f} to {upper * 1e3:.2f}{' (noisy)' * row.noisy}"
            cells["runs"] = str(len(row.seconds))
            cells["images/s"] = f"{batch_size / median:.1f}"
        if row.peak_bytes is not None:
            cells["peak MiB"] = f"{row.peak_bytes / 2**20:.2f}"
        if id(row) in ratio_by_id:
            noisy = kind != "memory" and (row.noisy or any(other.noisy for other in rows if other.candidate == base))
            cells[f"/ {base}"] = "noisy" if noisy else f"{ratio_by_id[id(row)]:.2f}"
        lines.append([cells.get(name, "") for name in header])
    empty_columns = [i for i in range(1, len(header)) if not any(len(line) > 2 and line[i] for line in lines)]
    header = [name for i, name in enumerate(header) if i not in empty_columns]
    lines = [
        line if len(line) == 2 else [cell for i, cell in enumerate(line) if i not in empty_columns] for line in lines
    ]
    return f"\n{title}\n{text_table([header, *lines])}"


def aggregates_table(entries: Sequence[dict[str, Any]]) -> str:
    """Format the entries of `aggregate` as a text table; without entries, return an empty string."""
    if not entries:
        return ""
    header = [name.replace("_", " ") for name in entries[0]]
    lines = [[_cell(value) for value in entry.values()] for entry in entries]
    return f"\n{text_table([header, *lines])}"


def noise_warning(rows: Sequence[Row]) -> str:
    """Return a warning about noisy rows; empty if there are none."""
    timed = [row for row in rows if row.seconds]
    noisy = sum(row.noisy for row in timed)
    if not noisy:
        return ""
    return (
        f"noisy: {noisy} of {len(timed)} measurements have an upper quartile more than {NOISY_RATIO} times the lower "
        f"one, with up to {1 + MAX_EXTRA_PASSES} times as many runs. They are excluded from the summary; stop other "
        "processes on this machine and measure again"
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


def median_seconds(row: Row) -> float | None:
    return summarize(row.seconds).median if row.seconds else None


def peak_bytes(row: Row) -> float | None:
    return row.peak_bytes


def _json_safe(value: Any) -> Any:
    """Replace inf and NaN, which JSON does not have, by strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _json_safe(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_json_safe(entry) for entry in value]
    return value
