"""Rows of results as JSON, ratios of times, and tables."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lambdanets.text_tables import text_table
from lambdanets_lab.benchmark.measurement import Row
from lambdanets_lab.timing import summarize

Quantity = Callable[[Row], float | None]


def row_to_json(row: Row) -> dict[str, Any]:
    """A row with its statistics, for results.json."""
    content = dataclasses.asdict(row) | {"noisy": row.noisy}
    if row.seconds:
        names = ("median_seconds", "lower_quartile_seconds", "upper_quartile_seconds")
        content |= zip(names, summarize(row.seconds), strict=True)
    return content


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
