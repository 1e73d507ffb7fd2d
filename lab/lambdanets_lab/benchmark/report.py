"""Write results.json with every sample, and format tables."""

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lambdanets.device import provenance
from lambdanets.errors import InputError
from lambdanets.records import read_json, write_json
from lambdanets.terminal import text_table
from lambdanets_lab.benchmark.measurement import NOT_REACHED, Row
from lambdanets_lab.benchmark.options import CommonOptions
from lambdanets_lab.results import installed_version
from lambdanets_lab.timing import summarize

RESULTS = "results.json"
BASELINE_PACKAGES = ("lambda-networks", "pylocron")
Quantity = Callable[[Row], float | None]


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
            "rows": rows,
            **self.settings(),
        }
        write_json(folder / RESULTS, content)

    def resume(self, folder: Path) -> None:
        """Load the finished cases from a folder."""
        content = read_json(folder / RESULTS, dict[str, Any])
        rows = read_rows(content)
        unfinished = [row.sizes for row in rows if row.skip_reason == NOT_REACHED]
        self.rows += [row for row in rows if row.sizes not in unfinished]
        self.started = content["started"]

    def settings(self) -> dict[str, Any]:
        """Settings that must be equal to resume a benchmark, as in JSON."""
        options = dataclasses.asdict(dataclasses.replace(self.options, out=None))  # without local paths
        settings = {"kind": self.kind, "device": self.device, "options": options}
        versions = {name: installed_version(name) for name in BASELINE_PACKAGES}
        content: dict[str, Any] = json.loads(json.dumps(settings | provenance(**versions)))
        return content


def read_settings(folder: Path) -> dict[str, Any] | None:
    """Read the settings of the benchmark in a folder; None without one. Raises InputError if it is finished."""
    path, advice = folder / RESULTS, "choose another folder with --out, or remove it"
    if not path.is_file():
        return None
    content = read_json(path, dict[str, Any], advice)
    if content.get("finished"):
        raise InputError(f"{path} exists and is finished; {advice}")
    return content | content.get("options", {})


def read_rows(content: Mapping[str, Any]) -> list[Row]:
    """Make rows from the content of results.json."""
    names = [field.name for field in dataclasses.fields(Row)]
    return [Row(**{name: row[name] for name in names if name in row}) for row in content["rows"]]


def median_seconds(row: Row) -> float | None:
    """Return the median time; None if it was not measured."""
    return summarize(row.seconds).median if row.seconds else None


def quiet_seconds(row: Row) -> float | None:
    """Return the median time; None also if the times are noisy."""
    return None if row.noisy else median_seconds(row)


def ratios(rows: Iterable[Row], quantity: Quantity, base: str) -> list[tuple[Row, float]]:
    """Pair each row with the ratio of its quantity to that of the candidate `base` in the same case, if both exist."""
    rows = list(rows)
    denominators = {tuple(row.sizes.items()): quantity(row) for row in rows if row.candidate == base}
    pairs = []
    for row in rows:
        numerator, denominator = quantity(row), denominators.get(tuple(row.sizes.items()))
        if numerator and denominator:
            pairs.append((row, numerator / denominator))
    return pairs


def case_table(rows: Sequence[Row], baseline: str | None, batch_size: int | None = None) -> str:
    """Format the rows of one case as a text table, with ratios to a baseline. batch_size: to show images/s."""
    title = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in rows[0].sizes.items())
    ratio = {row.candidate: value for row, value in ratios(rows, quiet_seconds, baseline)} if baseline else {}
    cells = [_cells(row, batch_size) for row in rows]
    for row, cell in zip(rows, cells, strict=True):
        if row.candidate in ratio:
            cell[f"/ {baseline}"] = f"{ratio[row.candidate]:.2f}"
    order = ("candidate", "median ms", "quartiles", "runs", "images/s", "peak MiB", f"/ {baseline}", "error")
    header = [name for name in order if any(name in cell for cell in cells)]
    lines = [
        [row.candidate, f"skipped: {row.skip_reason}"] if row.skip_reason else [cell.get(name, "") for name in header]
        for row, cell in zip(rows, cells, strict=True)
    ]
    return f"\n{title}\n{text_table([header, *lines])}"


def _cells(row: Row, batch_size: int | None) -> dict[str, str]:
    """The cells of a row by column."""
    cells = {"candidate": row.candidate}
    if row.seconds and not row.skip_reason:
        median, lower, upper = summarize(row.seconds)
        cells["median ms"] = f"{median * 1e3:.2f}"
        cells["quartiles"] = f"{lower * 1e3:.2f} to {upper * 1e3:.2f}{' (noisy)' * row.noisy}"
        cells["runs"] = str(len(row.seconds))
        if batch_size is not None:
            cells["images/s"] = f"{batch_size / median:.1f}"
    if row.peak_bytes is not None:
        cells["peak MiB"] = f"{row.peak_bytes / 2**20:.2f}"
    if row.errors:
        cells["error"] = f"{max(row.errors.values()):.0e}"
    return cells


def _statistics(row: Row) -> dict[str, float]:
    if not row.seconds:
        return {}
    median, lower, upper = summarize(row.seconds)
    return {"median_seconds": median, "lower_quartile_seconds": lower, "upper_quartile_seconds": upper}
