"""Read results of `lambdanets benchmark tables`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lambdanets.errors import InputError
from lambdanets.records import read_json
from lambdanets_lab.benchmark.model import baseline_row
from lambdanets_lab.benchmark.report import describe_setup, read_rows
from lambdanets_lab.paper_models import PAPER_MODELS
from lambdanets_lab.tables.paper import select_numbers
from lambdanets_lab.timing import summarize

# Column of the paper's Table 18, for batches of 1,024 images.
LATENCY = "train step latency"


@dataclass
class Measured:
    """Measurements of one machine.

    values: (value, note), keyed by (table, row, column of the paper).
    figures: paths of figures relative to the page, keyed by table.
    """

    values: dict[tuple[str, str, str], tuple[float, str]] = field(default_factory=dict)
    machine: str = ""
    figures: dict[str, str] = field(default_factory=dict)


def read(paths: Sequence[Path]) -> Measured:
    """Read measurement files. Raises InputError for other files, and for files from different machines."""
    measured = Measured()
    for path in paths:
        content = read_json(path, dict[str, Any])
        if content.get("kind") != "tables":
            raise InputError(f"{path} must be results.json of lambdanets benchmark tables, got another file")
        machine = describe_setup(content)
        if measured.machine not in ("", machine):
            raise InputError(
                "--measured files must be from the same machine and setup, "
                f"got {measured.machine}, and {machine} in {path}"
            )
        measured.machine = machine
        measured.values |= values_by_cell(content)
    return measured


def values_by_cell(content: Mapping[str, Any]) -> dict[tuple[str, str, str], tuple[float, str]]:
    """Compute the value of each cell (table, row, column of the paper), with a note on the speedup over the baseline.

    Throughputs are in images/s; latencies are scaled to the paper's 1,024 images.
    """
    batch_size = content["options"]["batch_size"]
    rows = {(*row.sizes.values(), row.candidate): row for row in read_rows(content) if row.seconds}
    seconds = {key: summarize(row.seconds).median / batch_size for key, row in rows.items()}  # of an image
    values: dict[tuple[str, str, str], tuple[float, str]] = {}
    for (table, phase, name), row in rows.items():
        column, base = _column(table, phase), baseline_row(table)
        if column is None:
            continue
        own, others = seconds[table, phase, name], seconds.get((table, phase, base))
        image_size = content["options"]["image_size"] or PAPER_MODELS[table][name].image_size
        note = f"batch {batch_size}, {image_size} px"
        if others is not None:
            paper_ratio = _paper_ratio(table, name, base, column)
            paper = f" (paper: {paper_ratio:.2f}x)" if paper_ratio is not None else ""
            note = f"{others / own:.2f}x the speed of {base}{paper}; {note}"
        if row.peak_bytes is not None:
            note += f", peak {row.peak_bytes / 2**30:.2f} GiB"
        values[table, name, column] = (own * 1024 if column == LATENCY else 1 / own, note)
        if table == "5" and others is not None:
            values[table, name, f"{column} slowdown vs LambdaResNet-152"] = (own / others, "")
    return values


def _column(table: str, phase: str) -> str | None:
    """The column of the paper for a measured pass; None if there is none."""
    if table == "18":
        return LATENCY
    if table == "5":
        return "train throughput" if phase == "training" else "inference throughput"
    return None if phase == "training" else "throughput"


def _paper_ratio(table: str, row: str, baseline: str, column: str) -> float | None:
    """Compute the speedup of a row over the baseline row in the paper; None if the paper does not report both."""
    numbers = [n for n in select_numbers([table]) if n.column == column and not isinstance(n.value, str)]
    speeds = {n.row: n.value for n in numbers}
    if row not in speeds or baseline not in speeds:
        return None
    ratio = float(speeds[row]) / float(speeds[baseline])
    return 1 / ratio if column == LATENCY else ratio
