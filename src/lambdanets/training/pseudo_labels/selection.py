"""Which pseudo-labels a student learns from: confident ones, balanced over classes.

Noisy Student (Xie et al. 2020): labels of a confidence above 0.3; of each class the 130,000 most confident images, and
where it has fewer, some of them repeatedly.
"""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lambdanets.errors import InputError
from lambdanets.files import atomic_write, is_unfinished, printable_bytes, remove_unfinished
from lambdanets.locks import LOCK, locked_folder
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
    if (done := _begun(out, given, criteria)) is not None:
        return done
    with locked_folder(out):
        if (done := _begun(out, given, criteria)) is not None:
            return done
        shutil.rmtree(out / SPILL, ignore_errors=True)  # of a killed process
        remove_unfinished(out)
        with open_ranking(given, criteria, out / SPILL) as ranking:
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
    atomic_write(out / SELECTION, printable_bytes(json.dumps(content, indent=1, ensure_ascii=False) + "\n"))
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


def read_selection(folder: Path) -> dict[str, Any]:
    """What selection.json in a folder says. Raises InputError where there is none, or a damaged one."""
    path = folder / SELECTION
    if not path.is_file():
        raise InputError(f"{folder} is no finished selection of pseudo-labels: it has no {SELECTION}")
    try:
        content = json.loads(path.read_bytes())
        counts = [content[name] for name in ("rows", "confident", "kept", "images")]
        counts += [shard["images"] for shard in content["shards"]]
        names = [entry["class"] for entry in content["classes"]] + [shard["name"] for shard in content["shards"]]
        lists = [content[name] for name in ("short", "without", "classes", "shards")]
        if not (
            all(type(count) is int and count >= 0 for count in counts)
            and all(isinstance(name, str) for name in names)
            and all(isinstance(each, list) for each in lists)
            and isinstance(content["teacher"], dict)
            and content["classes"]
            and content["shards"]
        ):
            raise ValueError
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{path} is damaged; remove it and select again") from error
    return content


def _begun(out: Path, labels: Labels, criteria: Criteria) -> Report | None:
    """The report of a selection that is whole, None where there is none or a part of it.

    Raises InputError unless the folder is new, empty, or holds some of this very selection.
    """
    if not out.exists():
        return None
    if not out.is_dir():
        raise InputError(f"{out} must be a folder, and is a file; name another")
    for path in out.iterdir():
        if is_unfinished(path) or path.name == LOCK:
            continue
        there = None
        if path.name == SELECTION:
            there = read_selection(out)
        elif path.suffix == ".parquet":
            there = json.loads(metadata_of(path).get(_CRITERIA, b"null"))
        if there is None:
            raise InputError(f"{out} holds something already: {path.name}; name another folder")
        for name, value in asdict(criteria).items():
            if there.get(name) != value:
                other = "of other labels" if name == "labels" else f"with {name} {there.get(name)}, not {value}"
                raise InputError(f"{out} holds a selection {other}; name another folder")
    if not all((out / name).is_file() for name in (SELECTION, *(path.name for path in labels.paths))):
        return None
    content = read_selection(out)
    return Report(**{field.name: content[field.name] for field in fields(Report)})
