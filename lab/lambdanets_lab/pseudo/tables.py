"""Tables of pseudo-labels, and the selection of the labels to train on.

A folder of labels has pseudo-labels.json and one Parquet file per shard of images. A table has one row per image with
the columns `key` (name of the image in the shard, unique in the dataset), `position` (index of the image in the shard),
`class` and `confidence` (the most probable class and its probability), `classes` and `probabilities` (the `top_k` most
probable classes, in descending order of probability). Tables of a selection also have the column `copies`: how often
the image is in the selection.

Noisy Student (Xie et al. 2020) selects labels with a confidence above 0.3, and of these the 130,000 most confident
images of each class; images of classes with fewer are repeated.
"""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lambdanets.errors import InputError
from lambdanets.files import atomic_open, encode_utf8
from lambdanets.progress import track
from lambdanets.records import read_json, write_json
from lambdanets.signals import check_signals
from lambdanets.work import WorkFolder

if TYPE_CHECKING:
    import duckdb

DESCRIPTION = "pseudo-labels.json"
SELECTION = "selection.json"
_CRITERIA = "criteria.json"  # of a selection, written before its tables
_ORIGIN = b"lambdanets"  # key in the metadata of a table
MEMORY_LIMIT = "1GB"  # of DuckDB; larger data is spilled to disk
THREADS = min(4, os.cpu_count() or 1)

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
    """Provenance of labels. Tables of different origins are never mixed.

    classes: all class names. teacher: its model, and the hashes of its weights and of the images. top_k: number of
    classes stored per image.
    """

    classes: tuple[str, ...]
    teacher: dict[str, Any]
    top_k: int

    def to_json(self) -> bytes:
        """Return the origin as JSON. Equal origins have identical bytes."""
        content = {"classes": self.classes, "teacher": self.teacher, "top_k": self.top_k}
        return encode_utf8(json.dumps(content, sort_keys=True, ensure_ascii=False))


@dataclass(frozen=True)
class Labels(Origin):
    """Content of pseudo-labels.json. shards: names of the tables, without the suffix."""

    shards: tuple[str, ...]


@dataclass(frozen=True)
class Selection(Origin):
    """Content of selection.json.

    rows, confident, kept: number of all rows, confident rows and selected rows. images: number of selected images,
    counting copies. short: classes with fewer confident rows than per_class. without: classes without confident rows.
    shards: number of selected images in each table.
    """

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


def write_table(
    path: Path, origin: Origin, keys: Sequence[str], positions: np.ndarray, classes: np.ndarray, probs: np.ndarray
) -> None:
    """Write the labels of a shard's images atomically.

    keys, positions: (n,). classes, probs: (n, top_k), in descending order of probability.
    """
    texts = [encode_utf8(key).decode() for key in keys]
    offsets = np.arange(len(keys) + 1, dtype=np.int32) * origin.top_k
    lists = [
        pa.ListArray.from_arrays(offsets, pa.array(values.reshape(-1), dtype))
        for values, dtype in ((classes, pa.int32()), (probs, pa.float32()))
    ]
    columns = [pa.array(texts, pa.string()), positions, classes[:, 0], probs[:, 0], *lists]
    arrays = [pa.array(column).cast(field.type) for column, field in zip(columns, LABEL_SCHEMA, strict=True)]
    _write(path, pa.Table.from_arrays(arrays, schema=LABEL_SCHEMA), origin)


def _write(path: Path, table: pa.Table, origin: Origin) -> None:
    options = {"use_dictionary": ["class"], "compression": "zstd", "write_page_checksum": True, "store_schema": False}
    with atomic_open(path) as file, pq.ParquetWriter(file, table.schema, **options) as parquet:
        parquet.write_table(table)
        parquet.add_key_value_metadata({_ORIGIN: origin.to_json()})


def read_table(path: Path, origin: Origin, columns: Sequence[str] | None = None) -> pa.Table:
    """Read the rows of a table. columns: all by default; they must include class and confidence.

    Raises InputError for a damaged table, and for one of another origin.
    """
    advice = f"remove {path.name} and run the command that wrote it again"
    try:
        with path.open("rb") as file, pq.ParquetFile(file, page_checksum_verification=True) as parquet:
            schema = SELECTION_SCHEMA if "copies" in parquet.schema_arrow.names else LABEL_SCHEMA
            if not parquet.schema_arrow.equals(schema):
                names = ", ".join(parquet.schema_arrow.names)
                raise InputError(f"{path} must be a table of pseudo-labels, got one with columns {names}; {advice}")
            if (parquet.metadata.metadata or {}).get(_ORIGIN) != origin.to_json():
                raise InputError(f"{path} has other classes or another teacher than the other labels in its folder")
            table = parquet.read(columns, use_threads=False).replace_schema_metadata()
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # an I/O error, not a damaged file
            raise
        raise InputError(f"{path} is damaged ({str(error).partition(chr(10))[0]}); {advice}") from error
    classes, confidence = table["class"].to_numpy(), table["confidence"].to_numpy()
    is_valid = (classes >= 0) & (classes < len(origin.classes)) & (confidence >= 0) & (confidence <= 1)  # not for NaN
    if not is_valid.all():
        raise InputError(f"{path} is damaged: a class or a confidence is out of range; {advice}")
    return table


def read_selection(folder: Path) -> Selection:
    """Read selection.json in a folder. Raises InputError if it is missing or damaged."""
    if not (folder / SELECTION).is_file():
        raise InputError(f"{folder} must be a finished selection of pseudo-labels, got a folder without {SELECTION}")
    return read_json(folder / SELECTION, Selection, "remove it and select again")


# Each class gets per_class images: every confident row gets `base` copies, and the first `extra` rows get one more.
# Rows are ordered by confidence (only if base is 0), then by the MD5 hash of seed and key, which has no collisions in
# practice. So the result depends only on the rows and the seed, not on files or threads.
_COUNT = """
CREATE TABLE classes AS SELECT class, count(*) AS "rows", max(confidence) AS highest,
    count(*) FILTER (confidence >= $confidence::FLOAT) AS confident,
    coalesce($per_class::BIGINT // nullif(confident, 0), 1) AS base,
    coalesce($per_class::BIGINT % nullif(confident, 0), 0) AS extra
FROM labels GROUP BY class
"""
_CLASSES = """
SELECT coalesce("rows", 0) AS "rows", coalesce(confident, 0) AS confident,
    if(confident > 0, base * confident + extra, 0) AS images, coalesce(highest, 0) AS highest
FROM range({}) AS numbers(class) LEFT JOIN classes USING (class) ORDER BY class
"""
_SCORE = "if(base = 0, confidence, 0)"
_HASH = "md5_number($seed || ' ' || key)"
_CUTOFFS = f"""
CREATE TABLE cutoffs AS SELECT class, score, hash FROM (
    SELECT class, extra, {_SCORE} AS score, {_HASH} AS hash
    FROM labels JOIN classes USING (class) WHERE extra > 0 AND confidence >= $confidence::FLOAT
)
QUALIFY row_number() OVER (PARTITION BY class ORDER BY score DESC, hash) = extra
"""
_COPIES = f"""
SELECT row_index, base + CASE WHEN {_SCORE} = cutoffs.score THEN {_HASH} <= cutoffs.hash
                              ELSE coalesce({_SCORE} > cutoffs.score, false) END::INT AS copies
FROM labels JOIN classes USING (class) LEFT JOIN cutoffs USING (class) WHERE confidence >= $confidence::FLOAT
"""


def select(
    folder: Path, out: Path, *, confidence: float = 0.3, per_class: int | None = None, seed: int = 0
) -> Selection:
    """Select rows of the tables in `folder` and write them to the folder `out`; write selection.json last.

    Rows with at least this confidence are selected. If per_class is set, each class with such rows gets exactly
    per_class images: the most confident ones or, if there are too few, all of them with copies, as evenly as possible.
    The seed determines which rows get more copies, and which rows of equal confidence are selected.

    If interrupted, call it again: only the missing tables are written. Raises InputError for options out of range, for
    labels that are missing, damaged or from several teachers, for an output folder with other files, and if no row is
    confident enough; OSError if the disk is full. Raises InUseError if another process writes into the folder.
    """
    if not 0 <= confidence < 1:
        raise InputError(f"confidence must be in [0, 1), got {confidence:g}")
    if per_class is not None and not 1 <= per_class < 1 << 31:
        raise InputError(f"per_class must be in [1, {(1 << 31) - 1}], got {per_class}")
    if not 0 <= seed < 1 << 64:
        raise InputError(f"seed must be in [0, {(1 << 64) - 1}], got {seed}")
    labels = open_labels(folder)
    sizes = [(name, (folder / f"{name}.parquet").stat().st_size) for name in labels.shards]
    digest = hashlib.sha256(labels.to_json() + repr(sizes).encode()).hexdigest()
    criteria = {"confidence": confidence, "per_class": per_class, "seed": seed, "labels": digest}
    work = WorkFolder(out, "a selection", criteria, _read_criteria)
    if work.is_started() and (out / SELECTION).is_file():
        return read_selection(out)
    with work.open(), _open_database(out / ".duckdb.unfinished") as database:
        return _select(_Ranking(database, folder, labels, criteria), out)


def _read_criteria(out: Path) -> dict[str, Any] | None:
    path = out / _CRITERIA
    return read_json(path, dict[str, Any], "choose another folder") if path.is_file() else None


@contextmanager
def _open_database(spill: Path) -> "Iterator[duckdb.DuckDBPyConnection]":
    """Open DuckDB within the block. spill: temporary folder for data beyond MEMORY_LIMIT."""
    import duckdb  # here, because training reads selections without it

    try:
        with duckdb.connect() as database:
            database.execute(f"SET memory_limit = '{MEMORY_LIMIT}'; SET threads = {THREADS}")
            database.execute("SET enable_progress_bar = false; SET temp_directory = $1", [str(spill)])
            yield database
    except (duckdb.IOException, duckdb.OutOfMemoryException) as error:
        reason = str(error).partition("\n")[0].partition(": ")[2].rstrip(".")
        message = f"DuckDB cannot sort the rows ({reason}); free memory or disk space"
        raise OSError(errno.ENOSPC, message, str(spill.parent)) from error
    finally:
        shutil.rmtree(spill, ignore_errors=True)


@dataclass(frozen=True)
class _Ranking:
    """Runs the queries."""

    database: "duckdb.DuckDBPyConnection"
    folder: Path
    labels: Labels
    criteria: dict[str, Any]

    def execute(self, query: str, rows: pa.Table | pa.RecordBatchReader = None) -> dict[str, np.ndarray]:
        """Run a query and return its columns. rows: content of the table `labels` in the query. Thread-safe."""
        parameters = {name: value for name, value in self.criteria.items() if f"${name}" in query}
        with self.database.cursor() as cursor, ThreadPoolExecutor(1) as worker:
            if rows is not None:
                cursor.register("labels", rows)
            # in the main thread, DuckDB would delay Ctrl-C
            future = worker.submit(lambda: cursor.execute(query, parameters).fetchnumpy())
            try:
                while not future.done():
                    wait([future], 0.05)
                    check_signals()
                return future.result()
            except BaseException:
                while not future.done():  # repeated, because an interrupt before the query starts has no effect
                    cursor.interrupt()
                    wait([future], 0.05)
                raise

    def scan(self, query: str, columns: list[str]) -> None:
        """Run a query on these columns of all tables. Raises InputError if a table is damaged."""
        errors = []

        def batches() -> Iterator[pa.RecordBatch]:
            try:
                for name in self.labels.shards:
                    yield from read_table(self.folder / f"{name}.parquet", self.labels, columns).to_batches()
            except Exception as error:  # DuckDB raises another error instead
                errors.append(error)
                raise

        schema = pa.schema([LABEL_SCHEMA.field(name) for name in columns])
        try:
            self.execute(query, pa.RecordBatchReader.from_batches(schema, batches()))
        except Exception as error:
            raise next(iter(errors), error) from None

    def copies(self, table: pa.Table) -> np.ndarray:
        """Return the number of copies of each row, int32 (n,). Thread-safe."""
        if self.criteria["per_class"] is None:
            return (table["confidence"].to_numpy() >= np.float32(self.criteria["confidence"])).astype(np.int32)
        rows = table.select(["key", "class", "confidence"]).append_column("row_index", pa.array(np.arange(len(table))))
        selected = self.execute(_COPIES, rows)
        copies = np.zeros(len(table), np.int32)
        copies[selected["row_index"]] = selected["copies"]
        return copies


def _select(ranking: _Ranking, out: Path) -> Selection:
    """Write the missing tables and selection.json."""
    labels, criteria = ranking.labels, ranking.criteria
    confidence, per_class = criteria["confidence"], criteria["per_class"]
    ranking.scan(_COUNT, ["class", "confidence"])
    counts = ranking.execute(_CLASSES.format(len(labels.classes)))
    rows, confident, images = (int(counts[name].sum()) for name in ("rows", "confident", "images"))
    if not confident:
        maximum = f"{counts['highest'].max():.4g}, the maximum of {rows} rows in {ranking.folder}"
        raise InputError(f"confidence must be at most {maximum}, got {confidence:g}")
    if per_class is not None:
        ranking.scan(_CUTOFFS, ["key", "class", "confidence"])
    write_json(out / _CRITERIA, criteria)
    with ThreadPoolExecutor(THREADS) as pool:  # on an error or interrupt, running tasks finish
        written = pool.map(lambda name: _select_shard(ranking, f"{name}.parquet", out), labels.shards)
        tables = [*track(written, "selecting", len(labels.shards), "tables")]
    shards = {name: int(copies.sum(dtype=np.int64)) for name, copies in zip(labels.shards, tables, strict=True)}
    if sum(shards.values()) != images:
        raise InputError(
            f"keys in {ranking.folder} must be unique, and its files unchanged, while it is read; "
            f"remove {out} and select again"
        )
    is_short = (counts["confident"] > 0) & (counts["confident"] < (per_class or 0))

    def names(chosen: np.ndarray) -> list[str]:
        return [labels.classes[number] for number in np.flatnonzero(chosen)]

    selection = Selection(
        labels.classes,
        labels.teacher,
        labels.top_k,
        rows,
        confident,
        sum(map(len, tables)),
        images,
        names(is_short),
        names(counts["confident"] == 0),
        shards,
    )
    write_json(out / SELECTION, asdict(selection))
    return selection


def _select_shard(ranking: _Ranking, name: str, out: Path) -> np.ndarray:
    """Write the selected rows of a table, unless the file exists, and return their numbers of copies."""
    if not (out / name).is_file():
        table = read_table(ranking.folder / name, ranking.labels)
        copies = pa.chunked_array([ranking.copies(table)])
        selected = table.append_column(SELECTION_SCHEMA.field("copies"), copies).filter(pc.greater(copies, 0))
        _write(out / name, selected.cast(SELECTION_SCHEMA), ranking.labels)
    return read_table(out / name, ranking.labels, ["class", "confidence", "copies"])["copies"].to_numpy()
