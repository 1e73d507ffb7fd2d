"""Read results of `lambdanets benchmark tables`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lambdanets.errors import InputError
from lambdanets.files import open_regular
from lambdanets_lab.benchmark.measurement import Row
from lambdanets_lab.benchmark.report import read_rows
from lambdanets_lab.benchmark.tables import baseline_row
from lambdanets_lab.paper_models import PAPER_MODELS
from lambdanets_lab.tables.paper import select_numbers
from lambdanets_lab.tables.verdicts import CellValues
from lambdanets_lab.timing import summarize

# Column of the paper's Table 18, for batches of 1,024 images.
LATENCY = "train step latency"


@dataclass(frozen=True)
class Measurement:
    """A row of `lambdanets benchmark tables`."""

    row: Row
    batch_size: int
    image_size: int

    @property
    def table(self) -> str:
        return str(self.row.sizes["table"])

    @property
    def phase(self) -> str:
        return str(self.row.sizes["pass"])

    @property
    def seconds(self) -> float | None:
        """The median seconds per image; None if it was skipped."""
        return summarize(self.row.seconds).median / self.batch_size if self.row.seconds else None

    @property
    def column(self) -> str | None:
        """The column of the paper; None if there is none."""
        training = self.phase == "training"
        if self.table == "18":
            return LATENCY
        if self.table == "5":
            return "train throughput" if training else "inference throughput"
        return None if training else "throughput"


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
        try:
            with open_regular(path) as file:
                content = json.loads(file.read())
            torch_version, dtype = content["versions"]["torch"], content["options"]["dtype"]
            measured_on = f"{_machine(content['hardware'])}, PyTorch {torch_version}, {dtype}"
            measurements = _read_measurements(content)
            measured.values |= values_by_cell(measurements)
        except OSError as error:
            raise InputError(f"{path}: {error.strerror or error}") from error
        except (AttributeError, ArithmeticError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise InputError(f"{path} must be results.json of lambdanets benchmark tables") from error
        if measured.machine not in ("", measured_on):
            raise InputError(
                "--measured files must be from the same machine and setup, "
                f"got {measured.machine}, and {measured_on} in {path}"
            )
        measured.machine = measured_on
    return measured


def _machine(properties: Mapping[str, Any]) -> str:
    """Format a short description of a machine from the result of `provenance.hardware`."""
    return properties["gpu"] or f"{properties['processor']}, {properties['threads']} of {properties['cores']} cores"


def _read_measurements(content: Mapping[str, Any]) -> list[Measurement]:
    """Make measurements from the content of results.json of `lambdanets benchmark tables`."""
    batch_size, image_size = content["options"]["batch_size"], content["options"]["image_size"]
    return [
        Measurement(row, batch_size, image_size or PAPER_MODELS[row.sizes["table"]][row.candidate].image_size)
        for row in read_rows(content)
    ]


def values_by_cell(measurements: Sequence[Measurement]) -> CellValues:
    """Compute the value of each cell (table, row, column of the paper), with a note on the speedup over the baseline.

    Throughputs are in images/s; latencies are scaled to the paper's 1,024 images.
    """
    values: dict[tuple[str, str, str], tuple[float, str]] = {}
    for each in measurements:
        seconds, column, row = each.seconds, each.column, each.row
        if seconds is None or column is None:
            continue
        baseline = _baseline_seconds(each, measurements)
        note = f"batch {each.batch_size}, {each.image_size} px"
        if baseline is not None:
            base = baseline_row(each.table)
            paper_ratio = _paper_ratio(each.table, row.candidate, base, column)
            paper = f" (paper: {paper_ratio:.2f}x)" if paper_ratio is not None else ""
            note = f"{baseline / seconds:.2f}x the speed of {base}{paper}; {note}"
        if row.peak_bytes is not None:
            note += f", peak {row.peak_bytes / 2**30:.2f} GiB"
        note += ", noisy" if row.noisy else ""
        values[each.table, row.candidate, column] = (seconds * 1024 if column == LATENCY else 1 / seconds, note)
        if each.table == "5" and baseline is not None:
            values["5", row.candidate, f"{column} slowdown vs LambdaResNet-152"] = (seconds / baseline, "")
    return values


def _baseline_seconds(measurement: Measurement, measurements: Sequence[Measurement]) -> float | None:
    """Return the seconds of the baseline row in the same pass; None if it was not measured."""
    base = measurement.row.sizes, baseline_row(measurement.table)
    return next((other.seconds for other in measurements if (other.row.sizes, other.row.candidate) == base), None)


def _paper_ratio(table: str, row: str, baseline: str, column: str) -> float | None:
    """Compute the speedup of a row over the baseline row in the paper; None if the paper does not report both."""
    numbers = [n for n in select_numbers([table]) if n.column == column and not isinstance(n.value, str)]
    speeds = {n.row: n.value for n in numbers}
    if row not in speeds or baseline not in speeds:
        return None
    ratio = float(speeds[row]) / float(speeds[baseline])
    return 1 / ratio if column == LATENCY else ratio
