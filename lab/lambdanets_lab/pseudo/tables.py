"""Tables of pseudo-labels, and the selection of the labels to train on.

A folder of labels has pseudo-labels.json and one Parquet file per shard. A table has one row per readable image with
the columns `key` (WebDataset key of the image), `position` (index of the image in the shard), `class` and `confidence`
(the most probable class and its probability), `classes` and `probabilities` (the `top` most probable classes, in
descending order of probability). Tables of a selection also have the column `copies`: how often the image is in the
selection.

Noisy Student (Xie et al. 2020) selects labels with a confidence above 0.3, and of these the 130,000 most confident
images of each class; images of classes with fewer are repeated.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lambdanets.errors import InputError
from lambdanets.files import atomic_open, encode_utf8
from lambdanets.progress import track
from lambdanets.records import read_json, write_json
from lambdanets.work import WorkFolder

DESCRIPTION = "pseudo-labels.json"
SELECTION = "selection.json"
_CRITERIA = "criteria.json"  # of a selection, written before its tables

_COLUMNS = {
    "key": pa.string(),
    "position": pa.int32(),
    "class": pa.int32(),
    "confidence": pa.float32(),
    "classes": pa.list_(pa.int32()),
    "probabilities": pa.list_(pa.float32()),
}
LABEL_SCHEMA = pa.schema(_COLUMNS)
_OPTIONS: Any = {"use_dictionary": ["class"], "compression": "zstd", "write_page_checksum": True, "store_schema": False}


@dataclass(frozen=True)
class Labels:
    """Content of pseudo-labels.json.

    classes: all class names. teacher: its model, and the hashes of its weights and of the images. top: number of
    classes stored per image. shards: names of the tables, without the suffix.
    """

    classes: tuple[str, ...]
    teacher: dict[str, Any]
    top: int
    shards: tuple[str, ...]


@dataclass(frozen=True)
class Selection:
    """Content of selection.json: that of the labels, and statistics.

    rows, confident, kept: number of all rows, confident rows and selected rows. images: number of selected images,
    counting copies. short: classes with fewer confident rows than per_class. without: classes without confident rows.
    shards: number of selected images in each table.
    """

    classes: tuple[str, ...]
    teacher: dict[str, Any]
    top: int
    rows: int
    confident: int
    kept: int
    images: int
    short: list[str]
    without: list[str]
    shards: dict[str, int]


def open_labels(folder: Path) -> Labels:
    """Read pseudo-labels.json. Raises InputError if it or a table is missing."""
    path = folder / DESCRIPTION
    if not path.is_file():
        raise InputError(f"{folder} must be a folder of pseudo-labels, got one without {DESCRIPTION}")
    labels = read_json(path, Labels, "label the images again")
    if missing := [name for name in labels.shards if not (folder / f"{name}.parquet").is_file()]:
        raise InputError(
            f"{folder} lacks {len(missing)} of {len(labels.shards)} tables, such as {missing[0]}.parquet; "
            "finish lambdanets pseudo-label first"
        )
    return labels


def write_table(path: Path, keys: Sequence[str], positions: np.ndarray, classes: np.ndarray, probs: np.ndarray) -> None:
    """Write the labels of a shard's images atomically.

    keys, positions: (n,). classes, probs: (n, top), in descending order of probability.
    """
    offsets = np.arange(len(keys) + 1, dtype=np.int32) * classes.shape[1]
    lists = [pa.ListArray.from_arrays(offsets, pa.array(values.reshape(-1))) for values in (classes, probs)]
    texts = pa.array([encode_utf8(key).decode() for key in keys], pa.string())
    columns = [texts, pa.array(positions), pa.array(classes[:, 0]), pa.array(probs[:, 0]), *lists]
    _write(path, pa.table(columns, names=list(_COLUMNS)).cast(LABEL_SCHEMA))


def _write(path: Path, table: pa.Table) -> None:
    with atomic_open(path) as file:
        pq.write_table(table, file, **_OPTIONS)


def read_table(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read the rows of a table. columns: all by default. Raises InputError for a damaged table."""
    try:
        with path.open("rb") as file, pq.ParquetFile(file, page_checksum_verification=True) as parquet:
            return parquet.read(columns, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # an I/O error, not a damaged file
            raise
        advice = f"remove {path.name} and run the command that wrote it again"
        raise InputError(f"{path} is damaged ({str(error).partition(chr(10))[0]}); {advice}") from error


def read_selection(folder: Path) -> Selection:
    """Read selection.json in a folder. Raises InputError if it is missing or damaged."""
    if not (folder / SELECTION).is_file():
        raise InputError(f"{folder} must be a finished selection of pseudo-labels, got a folder without {SELECTION}")
    return read_json(folder / SELECTION, Selection, "remove it and select again")


def select(
    folder: Path, out: Path, *, confidence: float = 0.3, per_class: int | None = None, seed: int = 0
) -> Selection:
    """Select rows of the tables in `folder` and write them to the folder `out`; write selection.json last.

    Rows with at least this confidence are selected. If per_class is set, each class with such rows gets exactly
    per_class images: the most confident ones or, if there are too few, all of them with copies, as evenly as possible.
    The seed determines which rows get more copies, and which rows of equal confidence are selected.

    If interrupted, call it again: only the missing tables are written. Raises InputError for labels that are missing or
    damaged, for an output folder with other files, and if no row is confident enough. Raises InUseError if another
    process writes into the folder.
    """
    labels = open_labels(folder)
    sizes = [(name, (folder / f"{name}.parquet").stat().st_size) for name in labels.shards]
    digest = hashlib.sha256(repr((labels, sizes)).encode()).hexdigest()
    criteria = {"confidence": confidence, "per_class": per_class, "seed": seed, "labels": digest}
    work = WorkFolder(out, criteria, _CRITERIA)
    if work.is_started() and (out / SELECTION).is_file():
        return read_selection(out)
    with work.open():
        copies, confident = _count_copies(folder, labels, criteria)
        write_json(out / _CRITERIA, criteria)
        kept, shards = 0, {}
        tables = track(labels.shards, "selecting", len(labels.shards), "tables")
        for name, counts in zip(tables, copies, strict=True):
            path = out / f"{name}.parquet"
            if not path.is_file():
                table = read_table(folder / path.name).append_column("copies", [counts])
                _write(path, table.filter(pa.array(counts > 0)))
            kept, shards[name] = kept + int((counts > 0).sum()), int(counts.sum())
        few = (confident > 0) & (confident < (per_class or 0))
        short, without = ([labels.classes[number] for number in np.flatnonzero(x)] for x in (few, confident == 0))
        rows, num_confident, num_images = sum(map(len, copies)), int(confident.sum()), sum(shards.values())
        selection = Selection(
            labels.classes, labels.teacher, labels.top, rows, num_confident, kept, num_images, short, without, shards
        )
        write_json(out / SELECTION, asdict(selection))
    return selection


def _count_copies(folder: Path, labels: Labels, criteria: dict[str, Any]) -> tuple[list[np.ndarray], np.ndarray]:
    """Return how often each row of each table is selected, and the number of confident rows of each class.

    Each class gets per_class images: every confident row gets `base` copies, and the first `extra` rows one more. Rows
    are ordered by confidence (only if base is 0), then by the MD5 hash of seed and key. So the result depends only on
    the rows and the seed, not on files. Without per_class, every confident row gets one copy. Raises InputError if no
    row is confident.
    """
    seed, per_class = criteria["seed"], criteria["per_class"]
    columns: list[tuple[np.ndarray, ...]] = []
    for name in track(labels.shards, "ranking", len(labels.shards), "tables"):
        table = read_table(folder / f"{name}.parquet", ["key", "class", "confidence"])
        keys = [] if per_class is None else table["key"].to_pylist()
        digests = b"".join(hashlib.md5(f"{seed} {key}".encode()).digest() for key in keys)
        hashes = np.frombuffer(digests, "<u8")[1::2].copy()
        columns.append((table["class"].to_numpy(), table["confidence"].to_numpy(), hashes))
    sizes = [len(classes) for classes, *_ in columns]
    classes, confidences, hashes = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    del columns  # half of the memory
    is_confident = confidences >= np.float32(criteria["confidence"])
    if not is_confident.any():
        maximum = f"{confidences.max(initial=0):.4g}, the maximum of {len(confidences)} rows in {folder}"
        raise InputError(f"confidence must be at most {maximum}, got {criteria['confidence']:g}")
    confident = np.bincount(classes[is_confident], minlength=len(labels.classes))
    copies = is_confident.astype(np.int32)
    if per_class is not None:
        base, extra = np.divmod(per_class, np.maximum(confident, 1))
        rows = np.flatnonzero(is_confident)
        confidence = np.where(base[classes[rows]] == 0, confidences[rows], 0)
        rows = rows[np.lexsort((hashes[rows], -confidence, classes[rows]))]
        ranks = np.arange(len(rows)) - (np.cumsum(confident) - confident)[classes[rows]]
        copies[rows] = base[classes[rows]] + (ranks < extra[classes[rows]])
    return np.split(copies, np.cumsum(sizes)[:-1]), confident
