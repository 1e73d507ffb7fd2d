"""Write results.json with every sample, and format tables."""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lambdanets.errors import InputError
from lambdanets.files import atomic_write, encode_utf8
from lambdanets.provenance import provenance
from lambdanets.records import parse_json
from lambdanets.text_tables import text_table
from lambdanets.timing import MAX_EXTRA_PASSES, NOISY_RATIO, summarize
from lambdanets.work import describe_differences
from lambdanets_lab.benchmark.aggregates import ratios
from lambdanets_lab.benchmark.kinds import KINDS, Kind
from lambdanets_lab.benchmark.measurement import NOT_REACHED, Row
from lambdanets_lab.benchmark.options import CommonOptions
from lambdanets_lab.benchmark.peers import installed_version

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
            "figures": KINDS[self.kind].aggregate(self.rows),
            "rows": rows,
            **self._settings(),
        }
        text = json.dumps(_json_safe(content), indent=1, default=str, ensure_ascii=False)
        atomic_write(folder / RESULTS, encode_utf8(text + "\n"))

    def resume(self, folder: Path) -> None:
        """Load the finished cases from a folder. Raises InputError if its benchmark has other settings."""
        content = _read_unfinished(folder / RESULTS, self._settings())
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
            **provenance(baseline_versions()),
        }


def _read_unfinished(path: Path, expected: Mapping[str, Any]) -> dict[str, Any]:
    """Read the JSON file of interrupted measurements, to resume them.

    expected: values that must be equal in the file, such as options, versions and hardware.

    Raises InputError if the measurements are finished, a value differs, or the file has other content.
    """
    advice = "choose another path with --out"
    problem = f"{path} has no measurements to resume"
    content: dict[str, Any] = parse_json(path.read_bytes(), dict[str, Any], problem, advice)
    if not isinstance(content.get("finished"), bool):
        raise InputError(f"{problem}: finished must be True or False, got {content.get('finished')!r}; {advice}")
    if content["finished"]:
        raise InputError(f"{path} exists and is finished; {advice}, or remove it")
    if differing := describe_differences(content, json.loads(json.dumps(expected, default=str))):
        raise InputError(f"{path} was started with {differing}; remove it, or {advice}")
    return content


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


def case_table(kind: Kind, rows: Sequence[Row], baseline: str | None, batch_size: int) -> str:
    """Format the rows of one case as a text table, with ratios to the baseline, if there is one."""
    title = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in rows[0].sizes.items())
    header = ["candidate", "median ms", "quartiles", "runs", "peak MiB", "error"]
    if kind.images_per_second:
        header[4:4] = ["images/s"]
    ratio_by_id = {}
    if baseline is not None:
        ratio_by_id = {id(row): ratio for row, ratio in ratios(rows, kind.quantity, baseline)}
        header.insert(-1, f"/ {baseline}")
    lines = []
    for row in rows:
        if row.skip_reason:
            lines.append([row.candidate, f"skipped: {row.skip_reason}"])
            continue
        cells = {"candidate": row.candidate}
        if row.errors:
            cells["error"] = f"{max(row.errors.values()):.0e}"
        if row.seconds:
            median, lower, upper = summarize(row.seconds)
            cells["median ms"] = f"{median * 1e3:.2f}"
            cells["quartiles"] = f"{lower * 1e3:.2f} to {upper * 1e3:.2f}{' (noisy)' * row.noisy}"
            cells["runs"] = str(len(row.seconds))
            cells["images/s"] = f"{batch_size / median:.1f}"
        if row.peak_bytes is not None:
            cells["peak MiB"] = f"{row.peak_bytes / 2**20:.2f}"
        if id(row) in ratio_by_id:
            noisy = kind.time and (row.noisy or any(other.noisy for other in rows if other.candidate == baseline))
            cells[f"/ {baseline}"] = "noisy" if noisy else f"{ratio_by_id[id(row)]:.2f}"
        lines.append([cells.get(name, "") for name in header])
    empty_columns = [i for i in range(1, len(header)) if not any(len(line) > 2 and line[i] for line in lines)]
    header = [name for i, name in enumerate(header) if i not in empty_columns]
    lines = [
        line if len(line) == 2 else [cell for i, cell in enumerate(line) if i not in empty_columns] for line in lines
    ]
    return f"\n{title}\n{text_table([header, *lines])}"


def aggregates_table(entries: Sequence[dict[str, Any]]) -> str:
    """Format the entries of aggregates as a text table; without entries, return an empty string."""
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


def _json_safe(value: Any) -> Any:
    """Replace inf and NaN, which JSON does not have, by strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _json_safe(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_json_safe(entry) for entry in value]
    return value
