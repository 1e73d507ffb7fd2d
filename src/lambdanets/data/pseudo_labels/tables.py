"""Reads and writes tables of pseudo-labels: one Parquet file per shard of images, and pseudo-labels.json.

A table has one row per image with the columns `key` (name of the image in the shard, unique in the dataset),
`position` (index of the image in the shard), `class` and `confidence` (the most probable class and its probability),
`classes` and `probabilities` (the `top_k` most probable classes, in descending order of probability). Tables of a
selection also have the column `copies`: how often the image is in the selection.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lambdanets.errors import InputError
from lambdanets.files import atomic_open, encode_utf8
from lambdanets.records import parse_json, read_json, write_json

DESCRIPTION = "pseudo-labels.json"
BATCH_ROWS = 1 << 16  # rows that are read or written at once
_ORIGIN = b"lambdanets"  # key in the metadata of a file
_READ_BYTES = 1 << 20  # read buffer per column; without it, whole row groups are read

_COLUMNS = {
    "key": pa.string(),
    "position": pa.int32(),
    "class": pa.int32(),
    "confidence": pa.float32(),
    "classes": pa.list_(pa.field("element", pa.int32(), nullable=False)),
    "probabilities": pa.list_(pa.field("element", pa.float32(), nullable=False)),
}
LABEL_SCHEMA = pa.schema([pa.field(name, column_type, nullable=False) for name, column_type in _COLUMNS.items()])
SELECTION_SCHEMA = LABEL_SCHEMA.append(pa.field("copies", pa.int32(), nullable=False))


@dataclass(frozen=True)
class Origin:
    """Provenance of labels. Files of different origins are never mixed.

    classes: all class names. teacher: description of the teacher. top_k: number of classes stored per image. Raises
    InputError for invalid values.
    """

    classes: tuple[str, ...]
    teacher: dict[str, Any]
    top_k: int

    def __post_init__(self) -> None:
        if not self.classes or len(set(self.classes)) < len(self.classes):
            count, different = len(self.classes), len(set(self.classes))
            raise InputError(f"classes must be one or more unique names, got {count} names, {different} different")
        if not 1 <= self.top_k <= len(self.classes):
            raise InputError(f"top must be in [1, {len(self.classes)}], the number of classes, got {self.top_k}")

    def to_json(self) -> bytes:
        """Return the origin as JSON. Equal origins have identical bytes."""
        return encode_utf8(json.dumps(asdict(self), sort_keys=True, ensure_ascii=False))


@dataclass(frozen=True)
class _Description(Origin):
    shards: tuple[str, ...] = ()


def write_description(folder: Path, origin: Origin, shards: Sequence[str] = ()) -> None:
    """Write pseudo-labels.json atomically. shards: names of all tables that the folder will have when finished."""
    write_json(folder / DESCRIPTION, asdict(origin) | ({"shards": sorted(shards)} if shards else {}), None)


def read_description(folder: Path) -> tuple[Origin, set[str]]:
    """Return the origin of the labels in a folder, and the names of all its tables if pseudo-labels.json has them.

    Raises InputError for a folder without pseudo-labels.json.
    """
    path = folder / DESCRIPTION
    if not path.is_file():
        raise InputError(f"{folder} must be a folder of pseudo-labels, got one without {DESCRIPTION}")
    description = read_json(path, _Description, "label the images again")
    return Origin(description.classes, description.teacher, description.top_k), set(description.shards)


class Labels(NamedTuple):
    """The labels in a folder: their origin, and the paths of the tables in order of their names."""

    origin: Origin
    paths: list[Path]

    def fingerprint(self) -> str:
        """Return a hash of the origin and of the names and sizes of the tables. Reads no rows."""
        digest = hashlib.sha256(self.origin.to_json())
        for path in self.paths:
            digest.update(f"\n{path.name!r} {path.stat().st_size}".encode())
        return digest.hexdigest()


def open_labels(folder: Path) -> Labels:
    """Open the labels in a folder without reading rows.

    Raises InputError if the folder has no pseudo-labels.json or no tables, or if a table named in it is missing.
    """
    origin, expected = read_description(folder)
    tables = sorted(folder.glob("[!.]*.parquet"))
    missing = sorted(expected - {table.stem for table in tables})
    if missing or not tables:
        count = f"{len(missing)} of {len(expected)} tables, such as {missing[0]}.parquet" if missing else "all tables"
        raise InputError(f"{folder} lacks {count}; finish lambdanets pseudo-label first")
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
    """Write the labels of a shard's images atomically.

    keys, positions: (n,), each unique. classes, probabilities: (n, top_k), in descending order of probability. Raises
    InputError for invalid values.
    """
    num_rows, shape = len(keys), (len(keys), origin.top_k)
    if positions.shape != (num_rows,) or classes.shape != shape or probabilities.shape != shape:
        raise InputError(
            f"positions, classes and probabilities must have shapes {(num_rows,)}, {shape} and {shape}, "
            f"got {positions.shape}, {classes.shape} and {probabilities.shape}"
        )
    try:
        keys = pa.array(keys, pa.string())
    except UnicodeEncodeError as error:  # a file name that is not valid UTF-8
        raise InputError(f"keys must be valid text, got {error.object!a}") from error
    for name, column in (("keys", keys), ("positions", pa.array(positions, pa.int32()))):
        if pc.count_distinct(column).as_py() < num_rows:
            raise InputError(f"{name} of a shard must be unique, got duplicates among {num_rows}")
    if num_rows and not 0 <= classes.min() <= classes.max() < len(origin.classes):
        raise InputError(f"classes must be in [0, {len(origin.classes) - 1}], got {classes.min()} to {classes.max()}")
    probabilities = probabilities.astype(np.float32) + np.float32(0)  # -0.0 becomes 0.0
    if not ((probabilities >= 0) & (probabilities <= 1)).all() or (np.diff(probabilities) > 0).any():
        raise InputError("probabilities must be in [0, 1], in descending order within a row")
    lists = [pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), origin.top_k) for x in (classes, probabilities)]
    columns = [keys, positions, classes[:, 0], probabilities[:, 0], *lists]
    arrays = [pa.array(column).cast(field.type) for column, field in zip(columns, LABEL_SCHEMA, strict=True)]
    with open_table_writer(path, LABEL_SCHEMA, origin) as file:
        file.write_table(pa.Table.from_arrays(arrays, schema=LABEL_SCHEMA), row_group_size=BATCH_ROWS)


@contextmanager
def open_table_writer(path: Path, schema: pa.Schema, origin: Origin) -> Iterator[pq.ParquetWriter]:
    """Open a Parquet writer with page checksums. The file is created atomically when the block ends."""
    options = {"use_dictionary": ["class"], "compression": "zstd", "write_page_checksum": True, "store_schema": False}
    with atomic_open(path) as file, pq.ParquetWriter(file, schema, **options) as parquet:
        yield parquet
        parquet.add_key_value_metadata({_ORIGIN: origin.to_json()})


def read_table(path: Path) -> tuple[pa.Table, Origin]:
    """Return all rows of a file and their origin. Raises InputError for a damaged file or one without pseudo-labels."""
    with _open(path) as parquet:
        rows = parquet.read(use_threads=False).replace_schema_metadata()
        return rows, parse_json(parquet.metadata.metadata[_ORIGIN], Origin, f"{path} is damaged")


def read_batches(path: Path, columns: Sequence[str], origin: Origin) -> Iterator[pa.RecordBatch]:
    """Yield batches of some columns of a file. `columns` must include class and confidence.

    Raises InputError for a damaged file or one of another origin.
    """
    with _open(path) as parquet:
        if parquet.metadata.metadata[_ORIGIN] != origin.to_json():
            raise InputError(f"{path} has other classes or another teacher than {DESCRIPTION} in its folder")
        for batch in parquet.iter_batches(BATCH_ROWS, columns=list(columns), use_threads=False):
            classes, confidences = (batch.column(name).to_numpy() for name in ("class", "confidence"))
            if len(batch) and not 0 <= classes.min() <= classes.max() < len(origin.classes):
                expected, got = f"[0, {len(origin.classes) - 1}]", f"{classes.min()} to {classes.max()}"
                raise InputError(f"{path} is damaged: class must be in {expected}, got {got}")
            if not ((confidences >= 0) & (confidences <= 1)).all():  # false for NaN
                raise InputError(f"{path} is damaged: confidence must be in [0, 1]")
            yield batch


def read_metadata(path: Path) -> dict[bytes, bytes]:
    """Return the metadata of a file. Raises InputError for a damaged file or one without pseudo-labels."""
    with _open(path) as parquet:
        return dict(parquet.metadata.metadata)


@contextmanager
def _open(path: Path) -> Iterator[pq.ParquetFile]:
    advice = f"remove {path.name} and run the command that wrote it again"
    try:
        with pq.ParquetFile(path, page_checksum_verification=True, buffer_size=_READ_BYTES) as parquet:
            expected = SELECTION_SCHEMA if "copies" in parquet.schema_arrow.names else LABEL_SCHEMA
            if not parquet.schema_arrow.equals(expected) or _ORIGIN not in (parquet.metadata.metadata or {}):
                columns = ", ".join(LABEL_SCHEMA.names)
                got = ", ".join(parquet.schema_arrow.names)
                raise InputError(f"{path} must be a table of pseudo-labels with columns {columns}, got {got}; {advice}")
            yield parquet
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # an I/O error, not a damaged file
            error.filename = str(path)  # missing in errors of pyarrow
            raise
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is damaged ({str(error).partition(chr(10))[0]}); {advice}") from error
