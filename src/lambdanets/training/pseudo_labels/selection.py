"""Selection of pseudo-labels to train a student on: confident ones, balanced over classes.

As in Noisy Student (Xie et al. 2020): labels with a confidence above 0.3, the 130,000 most confident images of each
class, with repeats for classes that have fewer.
"""

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import pyarrow as pa

from lambdanets.errors import InputError
from lambdanets.folders import WorkFolder, describe_differences
from lambdanets.records import read_json, write_json
from lambdanets.training.pseudo_labels.ranking import THREADS, Criteria, Ranking, open_ranking
from lambdanets.training.pseudo_labels.tables import (
    BATCH_ROWS,
    SCHEMA,
    SELECTED,
    Labels,
    metadata_of,
    open_labels,
    read_batches,
    writer,
)

SELECTION = "selection.json"
SPILL = ".duckdb.unfinished"  # in the selection's folder, for DuckDB
_CRITERIA = b"selection"  # in a table's metadata
_COUNTS = b"selection.counts"


@dataclass(frozen=True)
class Report:
    """Number of rows, confident rows, kept rows, and images with copies.

    short: classes with fewer confident rows than per_class; without: classes with none.
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
    """The content of selection.json, without the criteria."""

    teacher: dict[str, Any]
    classes: tuple[_Class, ...]
    shards: tuple[_Shard, ...]

    def __post_init__(self) -> None:
        if not (self.classes and self.shards):
            raise InputError("classes and shards must not be empty")
        if (minimum := min(shard["images"] for shard in self.shards)) < 0:
            raise InputError(f"images of a shard must be at least 0, got {minimum}")


def select(labels: Path, out: Path, *, confidence: float = 0.3, per_class: int | None = None, seed: int = 0) -> Report:
    """Write the selected rows of the tables in `labels` to the folder `out`, and selection.json last.

    Rows with at least the confidence are kept. With per_class, each class that has any gets exactly that many images:
    the most confident ones, or all with repeats, as evenly as possible. The seed determines which are repeated, and
    which of equal confidence are kept. The result does not depend on files, their order or their row groups.

    An interrupted selection resumes with the tables that it lacks. Raises InputError for options out of range, for
    labels that are missing, damaged or from several teachers, for an output folder with other files, and if no row is
    confident enough; InUseError if another process writes into the folder.
    """
    source = open_labels(labels)
    criteria = Criteria(confidence, per_class, seed, source.fingerprint())
    folder = WorkFolder(out, "a selection", asdict(criteria), partial(_read_criteria, criteria))
    if folder.is_started() and (report := _finished_report(out, source)):
        return report
    with folder.open(), open_ranking(source, criteria, out / SPILL) as ranking:
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
        ranking.find_cuts()
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
    """Write the kept rows of a table, unless the file exists, and return their counts."""
    if target.is_file():
        return json.loads(metadata_of(target)[_COUNTS])
    origin = ranking.labels.origin
    counts: dict[str, Any] = {"name": source.stem, "rows": 0, "kept": 0, "images": 0}
    with writer(target, SELECTED, origin) as file:
        pending = SELECTED.empty_table()
        for batch in read_batches(source, SCHEMA.names, origin):
            copies = ranking.copies(batch)
            kept = np.flatnonzero(copies)
            columns = [*batch.take(pa.array(kept)).columns, pa.array(copies[kept])]
            pending = pa.concat_tables([pending, pa.table(columns, schema=SELECTED)])
            counts["rows"] += len(batch)
            counts["kept"] += len(kept)
            counts["images"] += int(copies.sum(dtype=np.int64))
            if len(pending) >= BATCH_ROWS:  # small row groups are slow to read
                file.write_table(pending)
                pending = SELECTED.empty_table()
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
    """The criteria of the files in a selection's folder; other criteria than the given ones are preferred."""
    metadata = (metadata_of(path).get(_CRITERIA, b"null") for path in out.glob("[!.]*.parquet"))
    found: list[Any] = [json.loads(text) for text in metadata]
    if (out / SELECTION).is_file():
        read_selection(out)
        found.append(read_json(out / SELECTION, dict[str, Any]))
    others = [each for each in found if each is None or describe_differences(each, asdict(criteria))]
    return next(iter(others or found), None)


def _finished_report(out: Path, labels: Labels) -> Report | None:
    """The report of a finished selection, else None."""
    if not all((out / name).is_file() for name in (SELECTION, *(path.name for path in labels.paths))):
        return None
    return read_json(out / SELECTION, Report)
