"""Read results of `lambdanets benchmark`."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lambdanets.errors import InputError
from lambdanets.files import open_regular
from lambdanets.timing import is_noisy, summarize
from lambdanets_lab.benchmark.layer import CONVOLUTION, OURS
from lambdanets_lab.benchmark.report import read_rows
from lambdanets_lab.benchmark.tables import baseline_row
from lambdanets_lab.paper_models import PAPER_MODELS
from lambdanets_lab.tables.paper import select_numbers
from lambdanets_lab.tables.verdicts import CellValues

# Column of the paper's Table 18, for batches of 1,024 images.
LATENCY = "train step latency"


@dataclass(frozen=True)
class Measurement:
    """Seconds per batch and peak memory of a table row in one pass, or why it was skipped."""

    table: str
    row: str
    phase: str
    batch_size: int
    image_size: int
    seconds: list[float]
    peak_bytes: int | None
    skip_reason: str | None


@dataclass(frozen=True)
class MeasuredTable:
    """A table of measurements, formatted, to show below a table of the paper."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


@dataclass
class Measured:
    """Measurements of one machine.

    values: (value, note), keyed by (table, row, column of the paper).
    additional: tables of measurements that the paper does not report, keyed by the table below which they are shown.
    figures: paths of figures relative to the page, keyed by table.
    """

    values: dict[tuple[str, str, str], tuple[float, str]] = field(default_factory=dict)
    machine: str = ""
    additional: dict[str, list[MeasuredTable]] = field(default_factory=dict)
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
            if content["kind"] == "tables":
                measurements = _read_measurements(content)
                measured.values |= values_by_cell(measurements)
                for table in dict.fromkeys(measurement.table for measurement in measurements):
                    measured.additional.setdefault(table, []).extend(
                        _additional_tables(table, measurements, measured_on)
                    )
            else:
                make_table = {"layer": _time_table, "memory": _memory_table}[content["kind"]]
                measured.additional.setdefault("4", []).append(make_table(content, measured_on))
        except OSError as error:
            raise InputError(f"{path}: {error.strerror or error}") from error
        except (AttributeError, ArithmeticError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise InputError(f"{path} must be results.json of lambdanets benchmark tables, layer or memory") from error
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
    options = content["options"]
    return [
        Measurement(
            row.sizes["table"],
            row.candidate,
            row.sizes["pass"],
            options["batch_size"],
            options["image_size"] or PAPER_MODELS[row.sizes["table"]][row.candidate].image_size,
            row.seconds,
            row.peak_bytes,
            row.skip_reason,
        )
        for row in read_rows(content)
    ]


def values_by_cell(measurements: Sequence[Measurement]) -> CellValues:
    """Compute the value of each cell (table, row, column of the paper), with a note on the speedup over the baseline.

    Throughputs are in images/s; latencies are scaled to the paper's 1,024 images.
    """
    values: dict[tuple[str, str, str], tuple[float, str]] = {}
    for measurement in measurements:
        column = _column(measurement)
        if not measurement.seconds or column is None:
            continue
        seconds = _seconds(measurement)
        baseline = _find_baseline(measurement, measurements)
        note = f"batch {measurement.batch_size}, {measurement.image_size} px"
        if baseline is not None:
            paper_ratio = _paper_ratio(measurement.table, measurement.row, baseline.row, column)
            paper = f" (paper: {paper_ratio:.2f}x)" if paper_ratio is not None else ""
            note = f"{_seconds(baseline) / seconds:.2f}x the speed of {baseline.row}{paper}; {note}"
        if measurement.peak_bytes is not None:
            note += f", peak {measurement.peak_bytes / 2**30:.2f} GiB"
        if is_noisy(measurement.seconds):
            note += ", noisy"
        values[measurement.table, measurement.row, column] = (
            seconds * 1024 if column == LATENCY else 1 / seconds,
            note,
        )
        if measurement.table == "5" and baseline is not None:
            values["5", measurement.row, f"{column} slowdown vs LambdaResNet-152"] = (seconds / _seconds(baseline), "")
    return values


def _seconds(measurement: Measurement) -> float:
    """Compute the median seconds per image."""
    return summarize(measurement.seconds).median / measurement.batch_size


def _find_baseline(measurement: Measurement, measurements: Sequence[Measurement]) -> Measurement | None:
    """Find the measurement of the baseline row in the same pass; None if it was not measured."""
    same_pass = [
        other for other in measurements if (other.table, other.phase) == (measurement.table, measurement.phase)
    ]
    row = baseline_row(measurement.table)
    return next((other for other in same_pass if other.row == row and other.seconds), None)


def _paper_ratio(table: str, row: str, baseline: str, column: str) -> float | None:
    """Compute the speedup of a row over the baseline row in the paper; None if the paper does not report both."""
    numbers = [n for n in select_numbers([table]) if n.column == column and not isinstance(n.value, str)]
    speeds = {n.row: n.value for n in numbers}
    if row not in speeds or baseline not in speeds:
        return None
    ratio = float(speeds[row]) / float(speeds[baseline])
    return 1 / ratio if column == LATENCY else ratio


def _column(measurement: Measurement) -> str | None:
    """Return the column of the paper for a measurement; None if there is none."""
    training = measurement.phase == "training"
    if measurement.table == "18":
        return LATENCY
    if measurement.table == "5":
        return "train throughput" if training else "inference throughput"
    return None if training else "throughput"


def _additional_tables(table: str, measurements: Sequence[Measurement], measured_on: str) -> list[MeasuredTable]:
    """Make tables of measurements that the paper does not report: training in Table 4, speed in Table 10."""
    selected = [measurement for measurement in measurements if measurement.table == table]
    selected = [measurement for measurement in selected if table == "10" or _column(measurement) is None]
    if not selected:
        return []
    rows = []
    for measurement in selected:
        peak = "" if measurement.peak_bytes is None else f"{measurement.peak_bytes / 2**30:.2f}"
        if measurement.seconds:
            baseline = _find_baseline(measurement, measurements)
            ratio = "" if baseline is None else f"{_seconds(baseline) / _seconds(measurement):.2f}"
            rows.append((measurement.row, f"{1 / _seconds(measurement):.2f}", ratio, peak))
        else:
            rows.append((measurement.row, measurement.skip_reason or "not measured", "", peak))
    passes = "Forward and backward pass" if selected[0].phase == "training" else "Forward pass"
    title = f"{passes}, batch {selected[0].batch_size}, {selected[0].image_size} pixels. Measured on {measured_on}."
    header = ("", "images/s", f"x {baseline_row(table)}", "peak memory (GiB)")
    notes = (
        "attention here is PyTorch's SDPA, whose fused kernels store no attention maps; the paper's attention did",
    )
    return [MeasuredTable(title, header, tuple(rows), notes if table == "4" else ())]


def _time_table(content: Mapping[str, Any], measured_on: str) -> MeasuredTable:
    return _layer_table(content, measured_on, "median_seconds", 1e-3, "ms")


def _memory_table(content: Mapping[str, Any], measured_on: str) -> MeasuredTable:
    return _layer_table(content, measured_on, "peak_bytes", 2**20, "MiB")


def _layer_table(content: Mapping[str, Any], measured_on: str, key: str, unit_size: float, unit: str) -> MeasuredTable:
    """Make a table with one row per feature map, scope and pass, and one column per candidate."""
    names = list(dict.fromkeys(row["candidate"] for row in content["rows"]))
    names = [OURS, *(name for name in names if name not in (OURS, CONVOLUTION)), CONVOLUTION]
    cases: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in content["rows"]:
        sizes = row["sizes"]
        case = cases.setdefault((sizes["shape"], sizes["scope"], sizes["pass"]), {})
        case[row["candidate"]] = row
    notes: list[str] = []
    num_compared, num_wins = Counter[str](), Counter[str]()
    rows = []
    for (shape, scope, phase), results in cases.items():
        ours = results.get(OURS, {}).get(key)
        cells, winners = [], []
        for name in names:
            row = results.get(name, {"skip_reason": "not run"})
            if row["skip_reason"] or row[key] is None:
                note = f"{name}: {row['skip_reason']}"
                notes += [note] if note not in notes else []
                cells.append(f"[{notes.index(note) + 1}]")
                continue
            comparable = name != OURS and ours is not None
            noisy = key == "median_seconds" and (row.get("noisy") or (comparable and results[OURS].get("noisy")))
            ratio = " (noisy)" if noisy else f" ({row[key] / ours:.2f} x)" if comparable else ""
            cells.append(f"{row[key] / unit_size:.1f}{ratio}")
            if comparable:
                num_compared[name] += not noisy
                winners += [name] if row[key] < ours and not noisy else []
        num_wins.update(winners)
        rows.append((shape, str(scope), phase, *cells, ", ".join(winners)))
    options = content["options"]
    quantity = "Time (ms)" if unit == "ms" else "Peak memory (MiB)"
    title = (
        f"{quantity} of one layer, batch {options['batch_size']}, {options['heads']} heads, next to attention over the "
        f"same context and the 3x3 convolution (in parentheses: ratio to the lambda layer). Measured on {measured_on}."
    )
    winners_header = "faster than the lambda layer" if unit == "ms" else "less than the lambda layer"
    header = ("map", "scope", "pass", "lambda layer", *names[1:], winners_header)
    counts = ", ".join(
        f"{name} in {num_wins[name]} of {num_compared[name]} cases" for name in names[1:] if num_compared[name]
    )
    summary = [f"{winners_header}: {counts}"] if counts else []
    numbered = (f"[{i}] {note}" for i, note in enumerate(notes, 1))
    return MeasuredTable(title, header, tuple(rows), (*summary, *numbered))
