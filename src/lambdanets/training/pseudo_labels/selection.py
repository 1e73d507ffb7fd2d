"""Which pseudo-labels a student learns from: confident ones, balanced over classes.

Noisy Student (Xie et al. 2020): labels of a confidence above 0.3; of each class the 130,000 most confident images, and
where it has fewer, some of them repeatedly.
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
from lambdanets.folders import WorkFolder, differences
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
SPILL = ".duckdb.unfinished"  # in the selection's folder: what DuckDB does not keep in memory
_CRITERIA = b"selection"  # in a table's metadata
_COUNTS = b"selection.counts"


@dataclass(frozen=True)
class Report:
    """Rows read, those confident enough, those kept, and images with the copies of each counted.

    short: classes with fewer confident rows than per_class, but some; without: those with none.
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
    """What selection.json says, beside the criteria."""

    teacher: dict[str, Any]
    classes: tuple[_Class, ...]
    shards: tuple[_Shard, ...]

    def __post_init__(self) -> None:
        if not (self.classes and self.shards):
            raise InputError("classes and shards must be one at least, got none")
        if (least := min(shard["images"] for shard in self.shards)) < 0:
            raise InputError(f"images of a shard must be at least 0, got {least}")


def select(labels: Path, out: Path, *, confidence: float = 0.3, per_class: int | None = None, seed: int = 0) -> Report:
    """Write the tables of `labels` again to the folder `out`, with the rows to learn from, and selection.json last.

    Kept is what has at least the confidence. With per_class each class that has any comes to that many images: its most
    confident, or all, some repeated, as evenly as can be. The seed decides which are repeated, and among equal
    confidences which are kept. The rows kept depend on nothing else: not on files, their order or their row groups.

    A selection that was interrupted resumes: tables that are there are not written again. Raises InputError for options
    out of their range, labels that are missing, damaged or of several teachers, a folder with anything else in it, and
    where nothing is confident enough; InUseError where another process selects into the folder.
    """
    given = open_labels(labels)
    criteria = Criteria(confidence, per_class, seed, given.fingerprint())
    folder = WorkFolder(out, "a selection", asdict(criteria), partial(_found, criteria))
    if folder.is_begun() and (done := _finished(out, given)):
        return done
    with folder.open(), open_ranking(given, criteria, out / SPILL) as ranking:
        return _select(ranking, labels, out)


def _select(ranking: Ranking, labels: Path, out: Path) -> Report:
    """Write the tables that are not there yet, and selection.json."""
    classes, highest = ranking.count()
    rows, confident, images = (sum(entry[name] for entry in classes) for name in ("rows", "confident", "images"))
    criteria = ranking.criteria
    if not confident:
        best = f"{highest:.4g}, the highest of {rows} rows in {labels}"
        raise InputError(f"confidence must be at most {best}, got {criteria.confidence:g}")
    if criteria.per_class is not None:
        ranking.find_cuts()
    with ThreadPoolExecutor(THREADS) as pool:  # when one fails or is interrupted, those under way are finished
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
    parts = {"teacher": ranking.labels.origin.teacher, "classes": classes, "shards": shards}
    content = asdict(criteria) | asdict(report) | parts
    write_json(out / SELECTION, content)
    return report


def _select_shard(ranking: Ranking, source: Path, target: Path) -> dict[str, Any]:
    """Write the rows of a table that are kept, unless that is done; count them."""
    if target.is_file():
        return json.loads(metadata_of(target)[_COUNTS])
    origin = ranking.labels.origin
    counts: dict[str, Any] = {"name": source.stem, "rows": 0, "kept": 0, "images": 0}
    with writer(target, SELECTED, origin) as file:
        waiting = SELECTED.empty_table()
        for batch in read_batches(source, SCHEMA.names, origin):
            copies = ranking.copies(batch)
            kept = np.flatnonzero(copies)
            columns = [*batch.take(pa.array(kept)).columns, pa.array(copies[kept])]
            waiting = pa.concat_tables([waiting, pa.table(columns, schema=SELECTED)])
            counts["rows"] += len(batch)
            counts["kept"] += len(kept)
            counts["images"] += int(copies.sum(dtype=np.int64))
            if len(waiting) >= BATCH_ROWS:  # row groups of a few rows would be slow to read
                file.write_table(waiting)
                waiting = SELECTED.empty_table()
        if len(waiting):
            file.write_table(waiting)
        metadata = {_CRITERIA: json.dumps(asdict(ranking.criteria)), _COUNTS: json.dumps(counts)}
        file.add_key_value_metadata(metadata)
    return counts


def read_selection(folder: Path) -> Selection:
    """What selection.json in a folder says. Raises InputError where there is none, or a damaged one."""
    if not (folder / SELECTION).is_file():
        raise InputError(f"{folder} is no finished selection of pseudo-labels: it has no {SELECTION}")
    return read_json(folder / SELECTION, Selection, "remove it and select again")


def _found(criteria: Criteria, out: Path) -> Mapping[str, Any] | None:
    """The criteria of a selection, all or some of whose files are there; of several the one that is not as wanted."""
    metadata = (metadata_of(path).get(_CRITERIA, b"null") for path in out.glob("[!.]*.parquet"))
    found: list[Any] = [json.loads(text) for text in metadata]
    if (out / SELECTION).is_file():
        read_selection(out)
        found.append(read_json(out / SELECTION, dict[str, Any]))
    others = [each for each in found if each is None or differences(each, asdict(criteria))]
    return next(iter(others or found), None)


def _finished(out: Path, labels: Labels) -> Report | None:
    """The report of a selection that is whole."""
    if not all((out / name).is_file() for name in (SELECTION, *(path.name for path in labels.paths))):
        return None
    return read_json(out / SELECTION, Report)
