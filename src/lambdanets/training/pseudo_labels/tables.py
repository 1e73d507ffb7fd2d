"""Tables of pseudo-labels: a Parquet file for each shard of images, and pseudo-labels.json beside them.

A row is an image: `key` (its name in the shard, no other image of the set has it), `position` (its number within the
shard), `class` and `confidence` (the most probable class and its probability), `classes` and `probabilities` (the most
probable ones, best first). What a selection writes has `copies` beside them: how often a student sees the image.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lambdanets.errors import InputError
from lambdanets.files import atomic_open, printable_bytes
from lambdanets.records import parse_json, read_json, write_json

DESCRIPTION = "pseudo-labels.json"
BATCH_ROWS = 1 << 16  # in memory at a time
_ORIGIN = b"lambdanets"
_READ_BYTES = 1 << 20  # at a time and column, however large a row group is

_COLUMNS = {
    "key": pa.string(),
    "position": pa.int32(),
    "class": pa.int32(),
    "confidence": pa.float32(),
    "classes": pa.list_(pa.field("element", pa.int32(), nullable=False)),
    "probabilities": pa.list_(pa.field("element", pa.float32(), nullable=False)),
}
SCHEMA = pa.schema([pa.field(name, kind, nullable=False) for name, kind in _COLUMNS.items()])
SELECTED = SCHEMA.append(pa.field("copies", pa.int32(), nullable=False))


@dataclass(frozen=True)
class Origin:
    """Who gave the labels: the names of all classes, what describes the teacher, and how many classes a row has.

    Files of different origins are never mixed. Raises InputError for what no labels can come from.
    """

    classes: tuple[str, ...]
    teacher: dict[str, Any]
    top: int

    def __post_init__(self) -> None:
        if not self.classes or len(set(self.classes)) < len(self.classes):
            raise InputError(f"classes must be names that differ from each other, got {len(self.classes)} with repeats")
        if not 1 <= self.top <= len(self.classes):
            raise InputError(f"top must lie in 1 to {len(self.classes)}, the number of classes, got {self.top}")

    def to_json(self) -> bytes:
        """The same bytes for equal origins."""
        return printable_bytes(json.dumps(vars(self), sort_keys=True, ensure_ascii=False))


@dataclass(frozen=True)
class _Description(Origin):
    shards: tuple[str, ...] = ()


def write_description(folder: Path, origin: Origin, shards: Sequence[str] = ()) -> None:
    """Write pseudo-labels.json, whole or not at all. shards: names of the tables that a whole set has."""
    write_json(folder / DESCRIPTION, vars(origin) | ({"shards": sorted(shards)} if shards else {}), None)


def read_description(folder: Path) -> tuple[Origin, set[str]]:
    """Who gives the labels in a folder, and the names of all the tables that it is to have, where that is said.

    Raises InputError for a folder without pseudo-labels.json.
    """
    path = folder / DESCRIPTION
    if not path.is_file():
        raise InputError(f"{folder} is no folder of pseudo-labels: it has no {DESCRIPTION}")
    found = read_json(path, _Description, "label the images again")
    return Origin(found.classes, found.teacher, found.top), set(found.shards)


class Labels(NamedTuple):
    """Who gave the labels in a folder, and its tables by name."""

    origin: Origin
    paths: list[Path]

    def fingerprint(self) -> str:
        """A hash of the origin and of the tables' names and sizes, without reading a row."""
        digest = hashlib.sha256(self.origin.to_json())
        for path in self.paths:
            digest.update(f"\n{path.name!r} {path.stat().st_size}".encode())
        return digest.hexdigest()


def open_labels(folder: Path) -> Labels:
    """The labels in a folder, of which no row is read yet.

    Raises InputError for a folder without pseudo-labels.json or tables, and where a table is missing that it names.
    """
    origin, wanted = read_description(folder)
    tables = sorted(folder.glob("[!.]*.parquet"))
    missing = sorted(wanted - {table.stem for table in tables})
    if missing or not tables:
        lacking = f"{len(missing)} of {len(wanted)} tables, {missing[0]}.parquet first" if missing else "all tables"
        raise InputError(f"{folder} lacks {lacking}; finish labelling the images")
    return Labels(origin, tables)


def write_table(
    path: Path,
    origin: Origin,
    *,
    keys: Sequence[str] | pa.Array,
    positions: np.ndarray,
    classes: np.ndarray,
    probabilities: np.ndarray,
) -> None:
    """Write the labels of a shard's images, whole or not at all.

    keys and positions (n,), both without repeats; classes (n, k) most probable first, probabilities (n, k) theirs,
    where k is the origin's top. Raises InputError for what does not fit.
    """
    rows, shape = len(keys), (len(keys), origin.top)
    if positions.shape != (rows,) or classes.shape != shape or probabilities.shape != shape:
        raise InputError(
            f"positions, classes and probabilities must be of shapes {(rows,)}, {shape} and {shape}, "
            f"got {positions.shape}, {classes.shape} and {probabilities.shape}"
        )
    try:
        keys = pa.array(keys, pa.string())
    except UnicodeEncodeError as error:  # a file name in another encoding
        raise InputError(f"keys must be text, got {error.object!a}") from error
    for name, column in (("keys", keys), ("positions", pa.array(positions, pa.int32()))):
        if pc.count_distinct(column).as_py() < rows:
            raise InputError(f"{name} of a shard must differ from each other, got repeats among {rows}")
    if rows and not 0 <= classes.min() <= classes.max() < len(origin.classes):
        raise InputError(f"classes must lie in 0 to {len(origin.classes) - 1}, got {classes.min()} to {classes.max()}")
    probabilities = probabilities.astype(np.float32) + np.float32(0)  # no -0, whose bits are those of a large number
    if not ((probabilities >= 0) & (probabilities <= 1)).all() or (np.diff(probabilities) > 0).any():
        raise InputError("probabilities must lie in 0 to 1, the largest of a row first")
    lists = [pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), origin.top) for x in (classes, probabilities)]
    columns = [keys, positions, classes[:, 0], probabilities[:, 0], *lists]
    arrays = [pa.array(column).cast(field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    with writer(path, SCHEMA, origin) as file:
        file.write_table(pa.Table.from_arrays(arrays, schema=SCHEMA), row_group_size=BATCH_ROWS)


@contextmanager
def writer(path: Path, schema: pa.Schema, origin: Origin) -> Iterator[pq.ParquetWriter]:
    """A Parquet file that takes its place, whole, when the block ends; checksums tell later if a byte has changed."""
    coded = {"use_dictionary": ["class"], "compression": "zstd", "write_page_checksum": True, "store_schema": False}
    with atomic_open(path) as file, pq.ParquetWriter(file, schema, **coded) as parquet:
        yield parquet
        parquet.add_key_value_metadata({_ORIGIN: origin.to_json()})


def read_table(path: Path) -> tuple[pa.Table, Origin]:
    """All rows of a file, and who gave the labels. Raises InputError for a file that is damaged or holds no labels."""
    with _opened(path) as parquet:
        rows = parquet.read(use_threads=False).replace_schema_metadata()
        return rows, parse_json(parquet.metadata.metadata[_ORIGIN], Origin, f"{path} is damaged")


def read_batches(path: Path, columns: Sequence[str], origin: Origin) -> Iterator[pa.RecordBatch]:
    """Some columns of a file, class and confidence among them, a few rows at a time.

    Raises InputError for a damaged file or one of another origin.
    """
    with _opened(path) as parquet:
        if parquet.metadata.metadata[_ORIGIN] != origin.to_json():
            raise InputError(f"{path} has other classes or another teacher than {DESCRIPTION} beside it says")
        for batch in parquet.iter_batches(BATCH_ROWS, columns=list(columns), use_threads=False):
            classes, confidences = (batch.column(name).to_numpy() for name in ("class", "confidence"))
            if len(batch) and not 0 <= classes.min() <= classes.max() < len(origin.classes):
                wanted, got = f"0 to {len(origin.classes) - 1}", f"{classes.min()} to {classes.max()}"
                raise InputError(f"{path} is damaged: class must lie in {wanted}, got {got}")
            if not ((confidences >= 0) & (confidences <= 1)).all():  # what is not a number is neither
                raise InputError(f"{path} is damaged: confidence must lie in 0 to 1")
            yield batch


def metadata_of(path: Path) -> dict[bytes, bytes]:
    """What a file says about itself. Raises InputError for a file that is damaged or holds no labels."""
    with _opened(path) as parquet:
        return dict(parquet.metadata.metadata)


@contextmanager
def _opened(path: Path) -> Iterator[pq.ParquetFile]:
    advice = f"remove {path.name} and have it written again"
    try:
        with pq.ParquetFile(path, page_checksum_verification=True, buffer_size=_READ_BYTES) as parquet:
            expected = SELECTED if "copies" in parquet.schema_arrow.names else SCHEMA
            if not parquet.schema_arrow.equals(expected) or _ORIGIN not in (parquet.metadata.metadata or {}):
                columns = ", ".join(SCHEMA.names)
                found = ", ".join(parquet.schema_arrow.names)
                raise InputError(f"{path} must be a table of pseudo-labels, with {columns}; got {found}; {advice}")
            yield parquet
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the disk, not the content
            error.filename = str(path)  # which pyarrow leaves out
            raise
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is damaged ({str(error).partition(chr(10))[0]}); {advice}") from error
