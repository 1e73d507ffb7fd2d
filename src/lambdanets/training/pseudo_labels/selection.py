"""Which pseudo-labels a student learns from: confident ones, balanced over classes.

Noisy Student (Xie et al. 2020): labels of a confidence above 0.3; of each class the 130,000 most confident images, and
where it has fewer, some of them repeatedly.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lambdanets.errors import InputError
from lambdanets.files import is_unfinished, printable_bytes, remove_unfinished, write_whole
from lambdanets.locks import LOCK, locked_folder
from lambdanets.training.pseudo_labels.cuts import Counts, Cuts, count, find_cuts
from lambdanets.training.pseudo_labels.scanning import Scan, in_threads
from lambdanets.training.pseudo_labels.tables import (
    BATCH_ROWS,
    SCHEMA,
    SELECTED,
    Origin,
    metadata_of,
    open_labels,
    writer,
)

SELECTION = "selection.json"
_OPTIONS = b"selection"  # in a table: what it was selected by
_COUNTS = b"selection.counts"
_PARTS = {"teacher": dict, "classes": list, "shards": list}  # of selection.json, beside what a report has


@dataclass(frozen=True)
class Report:
    """Rows read, those confident enough, those kept, and images with the copies of each counted.

    short: classes with fewer confident rows than per_class, but some; without: those with none.
    """

    rows: int
    confident: int
    kept: int
    images: int
    short: tuple[str, ...]
    without: tuple[str, ...]


def select(labels: Path, out: Path, *, confidence: float = 0.3, per_class: int | None = None, seed: int = 0) -> Report:
    """Write the tables of `labels` again to the folder `out`, with the rows to learn from, and selection.json last.

    Kept is what has at least the confidence. With per_class each class that has any comes to that many images: its most
    confident, or all, some repeated, as evenly as can be. The seed decides which are repeated, and among equal
    confidences which are kept. The rows kept depend on nothing else: not on files, their order or their row groups.

    A selection that was interrupted resumes: tables that are there are not written again. Raises InputError for options
    out of their range, labels that are missing, damaged or of several teachers, a folder with anything else in it, and
    where nothing is confident enough; InUseError where another process selects into the folder.
    """
    _check(confidence, per_class, seed)
    origin, paths = open_labels(labels)
    options = {"confidence": confidence, "per_class": per_class, "seed": seed}
    chosen_by = options | {"labels": _fingerprint(origin, paths)}
    _check_folder(out, chosen_by)
    done = _finished(out, paths)
    if done is not None:
        return done
    with locked_folder(out):
        _check_folder(out, chosen_by)
        return _finished(out, paths) or _select(Scan(paths, origin, confidence), labels, out, chosen_by)


def _select(scan: Scan, labels: Path, out: Path, chosen_by: dict[str, Any]) -> Report:
    """Write the tables that are not there yet, and selection.json."""
    origin, per_class = scan.origin, chosen_by["per_class"]
    counts = count(scan)
    if not counts.confident.any():
        raise InputError(
            f"confidence must be at most {counts.highest:.4g}, the highest of {counts.rows.sum()} rows in {labels}, "
            f"got {scan.confidence:g}"
        )
    cuts = find_cuts(scan, counts, per_class, chosen_by["seed"])
    remove_unfinished(out)
    shards = in_threads(lambda path: _select_shard(path, out / path.name, scan, cuts, chosen_by), scan.paths)
    images = np.where(counts.confident > 0, cuts.base * counts.confident + cuts.extra, 0)
    if sum(shard["images"] for shard in shards) != images.sum():
        raise InputError(f"{labels} changed while it was read; remove {out} and select again")
    report = _report(origin, counts, shards, per_class)
    content = {
        **chosen_by,
        **asdict(report),
        "teacher": origin.teacher,
        "classes": [
            {"class": name, "rows": rows, "confident": confident, "images": kept}
            for name, rows, confident, kept in zip(
                origin.classes, *(column.tolist() for column in (counts.rows, counts.confident, images)), strict=True
            )
        ],
        "shards": shards,
    }
    write_whole(out / SELECTION, printable_bytes(json.dumps(content, indent=1, ensure_ascii=False) + "\n"))
    return report


def read_selection(folder: Path) -> dict[str, Any]:
    """What selection.json in a folder says. Raises InputError where there is none, or a damaged one."""
    if not (folder / SELECTION).is_file():
        raise InputError(f"{folder} is no finished selection of pseudo-labels: it has no {SELECTION}")
    content = _read(folder / SELECTION)
    if not (
        all(isinstance(content.get(name), kind) for name, kind in _PARTS.items())
        and content["classes"]
        and content["shards"]
        and all(isinstance(entry, dict) and isinstance(entry.get("class"), str) for entry in content["classes"])
        and all(isinstance(entry, dict) and isinstance(entry.get("name"), str) for entry in content["shards"])
        and all(type(entry.get("images")) is int and entry["images"] >= 0 for entry in content["shards"])
    ):
        raise InputError(_damaged(folder / SELECTION))
    return content


def _check(confidence: float, per_class: int | None, seed: int) -> None:
    if not 0 <= confidence < 1:
        raise InputError(f"confidence must be at least 0 and below 1, got {confidence:g}")
    if per_class is not None and not 1 <= per_class < 1 << 31:
        raise InputError(f"per_class must lie in 1 to {(1 << 31) - 1}, got {per_class}")
    if not 0 <= seed < 1 << 64:
        raise InputError(f"seed must lie in 0 to {(1 << 64) - 1}, got {seed}")


def _fingerprint(origin: Origin, paths: list[Path]) -> str:
    """A hash of who gave the labels, and of the tables' names and sizes, without reading a row."""
    digest = hashlib.sha256(origin.to_json())
    for path in paths:
        digest.update(f"\n{path.name!r} {path.stat().st_size}".encode())
    return digest.hexdigest()


def _check_folder(out: Path, chosen_by: dict[str, Any]) -> None:
    """Raise InputError unless a folder is new, empty, or holds some of this very selection."""
    if not out.exists():
        return
    if not out.is_dir():
        raise InputError(f"{out} must be a folder, and is a file; name another")
    for path in out.iterdir():
        if is_unfinished(path) or path.name == LOCK:
            continue
        there = None
        if path.name == SELECTION:
            there = {name: value for name, value in _read(path).items() if name in chosen_by}
        elif path.suffix == ".parquet":
            there = json.loads(metadata_of(path).get(_OPTIONS, b"null"))
        if there is None:
            raise InputError(f"{out} holds something already: {path.name}; name another folder")
        for name, value in chosen_by.items():
            if there.get(name) != value:
                other = "of other labels" if name == "labels" else f"with {name} {there.get(name)}, not {value}"
                raise InputError(f"{out} holds a selection {other}; name another folder")


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
        Report(**{name: content[name] for name in Report.__dataclass_fields__})
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise InputError(_damaged(path)) from error
    return content


def _damaged(path: Path) -> str:
    return f"{path} is damaged; remove it and select again"


def _finished(out: Path, paths: list[Path]) -> Report | None:
    """The report of a selection that is whole, None for one that is not."""
    if not (out / SELECTION).is_file() or not all((out / path.name).is_file() for path in paths):
        return None
    content = _read(out / SELECTION)
    fields = {name: content[name] for name in Report.__dataclass_fields__}
    return Report(**fields | {name: tuple(fields[name]) for name in ("short", "without")})


def _select_shard(source: Path, target: Path, scan: Scan, cuts: Cuts, chosen_by: dict[str, Any]) -> dict[str, Any]:
    """Write the rows of a table that are kept, unless that is done; count them."""
    if target.is_file():
        return json.loads(metadata_of(target)[_COUNTS])
    counts: dict[str, Any] = {"name": source.stem, "rows": 0, "kept": 0, "images": 0}
    with writer(target, SELECTED, scan.origin) as file:
        waiting: list[pa.RecordBatch] = []
        for rows in scan.read(source, SCHEMA.names):
            copies = cuts.copies(rows)
            kept = np.flatnonzero(copies)
            batch = rows.batch.take(pa.array(rows.places[kept]))
            waiting.append(pa.record_batch([*batch.columns, pa.array(copies[kept])], schema=SELECTED))
            counts["rows"] += len(rows.batch)
            counts["kept"] += len(kept)
            counts["images"] += int(copies.sum(dtype=np.int64))
            if sum(map(len, waiting)) >= BATCH_ROWS:  # row groups of a few rows would be slow to read
                file.write_table(pa.Table.from_batches(waiting))
                waiting.clear()
        if any(map(len, waiting)):
            file.write_table(pa.Table.from_batches(waiting))
        file.add_key_value_metadata({_OPTIONS: json.dumps(chosen_by), _COUNTS: json.dumps(counts)})
    return counts


def _report(origin: Origin, counts: Counts, shards: list[dict[str, Any]], per_class: int | None) -> Report:
    short = (counts.confident > 0) & (counts.confident < (per_class or 0))
    return Report(
        rows=int(counts.rows.sum()),
        confident=int(counts.confident.sum()),
        kept=sum(shard["kept"] for shard in shards),
        images=sum(shard["images"] for shard in shards),
        short=tuple(origin.classes[label] for label in np.flatnonzero(short)),
        without=tuple(origin.classes[label] for label in np.flatnonzero(counts.confident == 0)),
    )
