"""Selects the pseudo-labels that a student is trained on: confident ones, balanced over classes.

Noisy Student (Xie et al. 2020) uses labels with a confidence above 0.3, and of these the 130,000 most confident images
of each class; images of classes with fewer are repeated.
"""

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from typing_extensions import TypedDict  # for pydantic, until Python 3.12

from lambdanets.data.pseudo_labels.ranking import THREADS, Criteria, Ranking, open_ranking
from lambdanets.data.pseudo_labels.tables import (
    BATCH_ROWS,
    LABEL_SCHEMA,
    SELECTION_SCHEMA,
    Labels,
    open_labels,
    open_table_writer,
    read_batches,
    read_metadata,
)
from lambdanets.errors import InputError
from lambdanets.folders import WorkFolder, describe_differences
from lambdanets.records import read_json, write_json

SELECTION = "selection.json"
SPILL = ".duckdb.unfinished"  # temporary folder of DuckDB, in the output folder
# keys in the metadata of a table
_CRITERIA = b"selection"
_COUNTS = b"selection.counts"


@dataclass(frozen=True)
class Report:
    """Result of a selection.

    rows, confident, kept: number of all rows, confident rows and selected rows. images: number of selected images,
    counting copies. short: classes with fewer confident rows than per_class. without: classes without confident rows.
    """

    rows: int
    confident: int
    kept: int
    images: int
    short: list[str]
    without: list[str]


_Class = TypedDict("_Class", {"class": str})


class _Shard(TypedDict):
    name: str
    images: int


@dataclass(frozen=True)
class Selection(Report):
    """Content of selection.json, without the criteria."""

    teacher: dict[str, Any]
    classes: tuple[_Class, ...]
    shards: tuple[_Shard, ...]

    def __post_init__(self) -> None:
        if not (self.classes and self.shards):
            raise InputError("classes and shards must not be empty")
        if (minimum := min(shard["images"] for shard in self.shards)) < 0:
            raise InputError(f"images of a shard must be at least 0, got {minimum}")


def select(labels: Path, out: Path, *, confidence: float = 0.3, per_class: int | None = None, seed: int = 0) -> Report:
    """Select rows of the tables in `labels` and write them to the folder `out`; write selection.json last.

    Rows with at least this confidence are selected. If per_class is set, each class with such rows gets exactly
    per_class images: the most confident ones or, if there are too few, all of them with copies, as evenly as possible.
    The seed determines which rows get more copies, and which rows of equal confidence are selected. The result does not
    depend on how the rows are divided into files and row groups.

    If interrupted, call it again: only the missing tables are written. Raises InputError for options out of range, for
    labels that are missing, damaged or from several teachers, for an output folder with other files, and if no row is
    confident enough. Raises InUseError if another process writes into the folder.
    """
    tables = open_labels(labels)
    criteria = Criteria(confidence, per_class, seed, tables.fingerprint())
    folder = WorkFolder(out, "a selection", asdict(criteria), partial(_read_criteria, criteria))
    if folder.is_started() and (report := _finished_report(out, tables)):
        return report
    with folder.open(), open_ranking(tables, criteria, out / SPILL) as ranking:
        return _select(ranking, labels, out)


def _select(ranking: Ranking, labels: Path, out: Path) -> Report:
    """Write the missing tables and selection.json."""
    classes, highest = ranking.count()
    rows, confident, images = (sum(entry[name] for entry in classes) for name in ("rows", "confident", "images"))
    criteria = ranking.criteria
    if not confident:
        maximum = f"{highest:.4g}, the maximum of {rows} rows in {labels}"
        raise InputError(f"confidence must be at most {maximum}, got {criteria.confidence:g}")
    if criteria.per_class is not None:
        ranking.find_cutoffs()
    with ThreadPoolExecutor(THREADS) as pool:  # on an error or interrupt, running tasks finish
        shards = list(pool.map(lambda path: _select_shard(ranking, path, out / path.name), ranking.labels.paths))
    if sum(shard["images"] for shard in shards) != images:
        raise InputError(f"{labels} changed while it was read; remove {out} and select again")
    report = Report(
        rows,
        confident,
        sum(shard["kept"] for shard in shards),
        images,
        [entry["class"] for entry in classes if 0 < entry["confident"] < (criteria.per_class or 0)],
        [entry["class"] for entry in classes if not entry["confident"]],
    )
    sources = {"teacher": ranking.labels.origin.teacher, "classes": classes, "shards": shards}
    content = asdict(criteria) | asdict(report) | sources
    write_json(out / SELECTION, content)
    return report


def _select_shard(ranking: Ranking, source: Path, target: Path) -> dict[str, Any]:
    """Write the selected rows of a table, unless the file exists, and return the shard's entry in selection.json."""
    if target.is_file():
        return json.loads(read_metadata(target)[_COUNTS])
    origin = ranking.labels.origin
    counts: dict[str, Any] = {"name": source.stem, "rows": 0, "kept": 0, "images": 0}
    with open_table_writer(target, SELECTION_SCHEMA, origin) as file:
        pending = SELECTION_SCHEMA.empty_table()
        for batch in read_batches(source, LABEL_SCHEMA.names, origin):
            copies = ranking.copies(batch)
            kept = np.flatnonzero(copies)
            columns = [*batch.take(pa.array(kept)).columns, pa.array(copies[kept])]
            pending = pa.concat_tables([pending, pa.table(columns, schema=SELECTION_SCHEMA)])
            counts["rows"] += len(batch)
            counts["kept"] += len(kept)
            counts["images"] += int(copies.sum(dtype=np.int64))
            if len(pending) >= BATCH_ROWS:  # small row groups are slow to read
                file.write_table(pending)
                pending = SELECTION_SCHEMA.empty_table()
        if len(pending):
            file.write_table(pending)
        metadata = {_CRITERIA: json.dumps(asdict(ranking.criteria)), _COUNTS: json.dumps(counts)}
        file.add_key_value_metadata(metadata)
    return counts


def read_selection(folder: Path) -> Selection:
    """Read selection.json in a folder. Raises InputError if it is missing or damaged."""
    if not (folder / SELECTION).is_file():
        raise InputError(f"{folder} must be a finished selection of pseudo-labels, got a folder without {SELECTION}")
    return read_json(folder / SELECTION, Selection, "remove it and select again")


def _read_criteria(criteria: Criteria, out: Path) -> Mapping[str, Any] | None:
    """Return the criteria of the files in the folder of a selection, or None if there are no files.

    If some files have other criteria than `criteria`, return those.
    """
    contents = (read_metadata(path).get(_CRITERIA, b"null") for path in out.glob("[!.]*.parquet"))
    existing: list[Any] = [json.loads(content) for content in contents]
    if (out / SELECTION).is_file():
        read_selection(out)
        existing.append(read_json(out / SELECTION, dict[str, Any]))
    different = [entry for entry in existing if entry is None or describe_differences(entry, asdict(criteria))]
    return next(iter(different or existing), None)


def _finished_report(out: Path, labels: Labels) -> Report | None:
    """Return the report of a finished selection, or None if it is not finished."""
    if not all((out / name).is_file() for name in (SELECTION, *(path.name for path in labels.paths))):
        return None
    return read_json(out / SELECTION, Report)
