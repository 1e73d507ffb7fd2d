"""What was measured, read back from the files that `lambdanets tables --measure` and `lambdanets benchmark` leave."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lambdanets.errors import InputError
from lambdanets.evidence.benchmark.layer import CONVOLUTION, OURS
from lambdanets.evidence.benchmark.timing import is_noisy, summarize
from lambdanets.evidence.tables.printed import figures_of
from lambdanets.evidence.tables.rows import ROWS
from lambdanets.evidence.tables.speed import LATENCY, Sample, machine
from lambdanets.evidence.tables.verdicts import Measurements
from lambdanets.files import open_regular

# Rows that others are divided by; of other tables it is the first.
_BASES = {"4": "lambda layer"}
_WRITERS = {
    "tables": "lambdanets tables --measure",
    "layer": "lambdanets benchmark layer",
    "memory": "lambdanets benchmark memory",
}


@dataclass(frozen=True)
class Block:
    """A table of measurements that stands below a table of the paper: all in words."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


@dataclass
class Measured:
    """Values for printed columns, with a note each; the machine they are from; for tables of the paper, blocks.

    pictures: of tables, as a document may name them.
    """

    values: dict[tuple[str, str, str], tuple[float, str]] = field(default_factory=dict)
    machine: str = ""
    blocks: dict[str, list[Block]] = field(default_factory=dict)
    pictures: dict[str, str] = field(default_factory=dict)


def read(paths: Sequence[Path]) -> Measured:
    """What some files say. Raises InputError for a file that none of the commands wrote."""
    measured = Measured()
    for path in paths:
        try:
            with open_regular(path) as file:
                content = json.loads(file.read())
            where = f"{machine(content['hardware'])}, PyTorch {content['versions']['torch']}, float32"
            if content["kind"] == "tables":
                samples = [Sample(**row) for row in content["rows"]]
                measured.values |= values_of(samples)
                for table in dict.fromkeys(sample.table for sample in samples):
                    measured.blocks.setdefault(table, []).extend(_beside(table, samples, where))
            else:
                kind = {"layer": _times, "memory": _memory}[content["kind"]]
                measured.blocks.setdefault("4", []).append(kind(content, where))
        except OSError as error:
            raise InputError(f"{path}: {error.strerror or error}") from error
        except (AttributeError, ArithmeticError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise InputError(f"{path} is no file that {' or '.join(_WRITERS.values())} wrote") from error
        if measured.machine not in ("", where):
            raise InputError(f"--measured files must be of one machine; got {measured.machine}, and {where} in {path}")
        measured.machine = where
    return measured


def values_of(samples: Sequence[Sample]) -> Measurements:
    """Values by (table, row, printed column), each with its ratio to the table's base row beside the paper's.

    Throughputs are images a second; latency is scaled to the paper's 1,024 images.
    """
    values: dict[tuple[str, str, str], tuple[float, str]] = {}
    for sample in samples:
        column = _column(sample)
        if not sample.seconds or column is None:
            continue
        seconds = _seconds(sample)
        base = _base(sample, samples)
        note = f"batch {sample.batch_size}, {sample.image_size} px"
        if base is not None:
            theirs = _ratio_printed(sample.table, sample.row, base.row, column)
            paper = f", the paper's {theirs:.2f} x" if theirs is not None else ""
            note = f"{_seconds(base) / seconds:.2f} x {base.row}{paper}; {note}"
        if sample.peak_bytes is not None:
            note += f", peak {sample.peak_bytes / 2**30:.2f} GiB"
        if is_noisy(sample.seconds):
            note += ", noisy"
        values[sample.table, sample.row, column] = (seconds * 1024 if column == LATENCY else 1 / seconds, note)
        if sample.table == "5" and base is not None:
            values["5", sample.row, f"{column} slowdown vs LambdaResNet-152"] = (seconds / _seconds(base), "")
    return values


def _seconds(sample: Sample) -> float:
    """Median seconds an image."""
    return summarize(sample.seconds).median / sample.batch_size


def _base(sample: Sample, samples: Sequence[Sample]) -> Sample | None:
    """The sample that one is divided by; None where that was not measured."""
    some = [other for other in samples if (other.table, other.work) == (sample.table, sample.work)]
    row = _BASES.get(sample.table, next(iter(ROWS[sample.table])))
    return next((other for other in some if other.row == row and other.seconds), None)


def _ratio_printed(table: str, row: str, first: str, column: str) -> float | None:
    """How many times as fast as another row the paper says that a row is; None where it does not."""
    found = {f.row: f.value for f in figures_of([table]) if f.column == column and not isinstance(f.value, str)}
    if row not in found or first not in found:
        return None
    ratio = float(found[row]) / float(found[first])
    return 1 / ratio if column == LATENCY else ratio


def _column(sample: Sample) -> str | None:
    """The printed column that a sample answers to."""
    training = sample.work == "training"
    if sample.table == "18":
        return LATENCY
    if sample.table == "5":
        return "train throughput" if training else "inference throughput"
    return None if training else "throughput"


def _beside(table: str, samples: Sequence[Sample], where: str) -> list[Block]:
    """What was measured for a table and the paper does not print: training in Table 4, speed in Table 10."""
    some = [sample for sample in samples if sample.table == table]
    some = [sample for sample in some if table == "10" or _column(sample) is None]
    if not some:
        return []
    rows = []
    for sample in some:
        peak = "" if sample.peak_bytes is None else f"{sample.peak_bytes / 2**30:.2f}"
        if sample.seconds:
            base = _base(sample, samples)
            ratio = "" if base is None else f"{_seconds(base) / _seconds(sample):.2f}"
            rows.append((sample.row, f"{1 / _seconds(sample):.2f}", ratio, peak))
        else:
            rows.append((sample.row, sample.left_out or "not measured", "", peak))
    base_row = _BASES.get(table, next(iter(ROWS[table])))
    work = "Forward and backward pass" if some[0].work == "training" else "Forward pass"
    title = f"{work}, batch {some[0].batch_size}, {some[0].image_size} pixels. Measured on {where}."
    header = ("", "images/s", f"x {base_row}", "peak memory (GiB)")
    notes = ("attention here is by SDPA, whose fused kernels keep no map of all pairs; the paper's kept it",)
    return [Block(title, header, tuple(rows), notes if table == "4" else ())]


def _times(content: Mapping[str, Any], where: str) -> Block:
    return _block(content, where, "median_seconds", 1e-3, "ms")


def _memory(content: Mapping[str, Any], where: str) -> Block:
    return _block(content, where, "peak_bytes", 2**20, "MiB")


def _block(content: Mapping[str, Any], where: str, key: str, size: float, unit: str) -> Block:
    """A row for each map, scope and pass; a column for each contestant, with its ratio to the lambda layer."""
    names = list(dict.fromkeys(row["contestant"] for row in content["rows"]))
    names = [OURS, *(name for name in names if name not in (OURS, CONVOLUTION)), CONVOLUTION]
    cases: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in content["rows"]:
        sizes = row["sizes"]
        case = cases.setdefault((sizes["shape"], sizes["scope"], sizes["pass"]), {})
        case[row["contestant"]] = row
    notes: list[str] = []
    ran, fewer = Counter[str](), Counter[str]()
    rows = []
    for (shape, scope, work), found in cases.items():
        ours = found.get(OURS, {}).get(key)
        cells, better = [], []
        for name in names:
            row = found.get(name, {"left_out": "not run"})
            if row["left_out"] or row[key] is None:
                said = f"{name}: {row['left_out']}"
                notes += [said] if said not in notes else []
                cells.append(f"[{notes.index(said) + 1}]")
                continue
            told = name != OURS and ours is not None
            ratio = " (noisy)" if row.get("noisy") else f" ({row[key] / ours:.2f} x)" if told else ""
            cells.append(f"{row[key] / size:.1f}{ratio}")
            if told:
                ran[name] += 1
                noisy = key == "median_seconds" and (row.get("noisy") or found[OURS].get("noisy"))
                better += [name] if row[key] < ours and not noisy else []
        fewer.update(better)
        rows.append((shape, str(scope), work, *cells, ", ".join(better)))
    options = content["options"]
    title = (
        f"{unit} of one layer, batch {options['batch_size']}, {options['heads']} heads, beside attention over the same "
        f"context and the 3x3 convolution (x the lambda layer). Measured on {where}."
    )
    less = "faster than the lambda layer" if unit == "ms" else "less than the lambda layer"
    header = ("map", "scope", "pass", "lambda layer", *names[1:], less)
    counts = ", ".join(f"{name} in {fewer[name]} of {ran[name]} cases" for name in names[1:] if ran[name])
    said_first = [f"{less}: {counts}"] if counts else []
    return Block(title, header, tuple(rows), (*said_first, *(f"[{i}] {note}" for i, note in enumerate(notes, 1))))
