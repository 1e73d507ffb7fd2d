"""Ranks pseudo-labels within each class and computes how many copies of each are selected.

Each class gets per_class images. Every confident row of the class gets base = per_class // confident copies, and the
first extra = per_class % confident rows get one more. Rows are ordered by confidence (only if base is 0), then by the
MD5 hash of seed and key, which has no collisions in practice. Thus the result depends only on the rows and the seed,
not on the number or order of files or on the number of threads. DuckDB sorts the rows and spills to disk if needed.
"""

import errno
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from lambdanets.data.pseudo_labels.tables import LABEL_SCHEMA, Labels, read_batches
from lambdanets.errors import InputError
from lambdanets.signals import deferred

if TYPE_CHECKING:
    import duckdb

MEMORY_LIMIT = "1GB"  # of DuckDB; larger data is spilled to disk
THREADS = min(4, os.cpu_count() or 1)

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
CREATE TABLE cutoffs AS
SELECT class, score, hash, lead(score) OVER ranks = score AND lead(hash) OVER ranks = hash AS is_duplicate
FROM (
    SELECT class, extra, {_SCORE} AS score, {_HASH} AS hash
    FROM labels JOIN classes USING (class) WHERE extra > 0 AND confidence >= $confidence::FLOAT
)
WINDOW ranks AS (PARTITION BY class ORDER BY score DESC, hash) QUALIFY row_number() OVER ranks = extra
"""
_DUPLICATE_KEY = f"SELECT key FROM labels WHERE {_HASH} IN (SELECT hash FROM cutoffs WHERE is_duplicate) LIMIT 1"
_COPIES = f"""
SELECT row_index, base + CASE WHEN {_SCORE} = cutoffs.score THEN {_HASH} <= cutoffs.hash
                              ELSE coalesce({_SCORE} > cutoffs.score, false) END::INT AS copies
FROM labels JOIN classes USING (class) LEFT JOIN cutoffs USING (class) WHERE confidence >= $confidence::FLOAT
"""


@dataclass(frozen=True)
class Criteria:
    """Criteria for selecting rows. Raises InputError for a number out of range."""

    confidence: float  # minimum
    per_class: int | None  # images per class; None selects each confident row once
    seed: int
    labels: str  # fingerprint of the labels

    def __post_init__(self) -> None:
        if not 0 <= self.confidence < 1:
            raise InputError(f"confidence must be in [0, 1), got {self.confidence:g}")
        if self.per_class is not None and not 1 <= self.per_class < 1 << 31:
            raise InputError(f"per_class must be in [1, {(1 << 31) - 1}], got {self.per_class}")
        if not 0 <= self.seed < 1 << 64:
            raise InputError(f"seed must be in [0, {(1 << 64) - 1}], got {self.seed}")


@dataclass
class Ranking:
    """Computes the number of copies of each row in the tables of a folder. Created by `open_ranking`."""

    labels: Labels
    criteria: Criteria
    connection: "duckdb.DuckDBPyConnection"
    worker: ThreadPoolExecutor
    read_error: Exception | None = None  # raised while a table was read

    def count(self) -> tuple[list[dict[str, Any]], float]:
        """Return name, rows, confident rows and images (counting copies) of each class, and the maximum confidence."""
        self._scan(_COUNT, ["class", "confidence"])
        names = self.labels.origin.classes
        counts = self._execute(_CLASSES.format(len(names)))
        highest = float(counts.pop("highest").max())
        columns = {"class": names} | {name: column.tolist() for name, column in counts.items()}
        return [dict(zip(columns, entry, strict=True)) for entry in zip(*columns.values(), strict=True)], highest

    def find_cutoffs(self) -> None:
        """Find the last row of each class that gets an extra copy.

        Raises InputError if the next row has the same key, because the order of the two is then not defined.
        """
        self._scan(_CUTOFFS, ["key", "class", "confidence"])
        if len(self._execute("SELECT class FROM cutoffs WHERE is_duplicate")["class"]):
            key = self._scan(_DUPLICATE_KEY, ["key", "class", "confidence"])["key"][0]
            raise InputError(f"keys of a dataset must be unique, got {key!r} more than once")

    def copies(self, batch: pa.RecordBatch) -> np.ndarray:
        """Return the number of copies of each row of a batch, int32 (n,).

        Call `count` first and, if per_class is set, `find_cutoffs`. Thread-safe, but not for the main thread, where
        DuckDB delays Ctrl-C.
        """
        if self.criteria.per_class is None:
            return (batch.column("confidence").to_numpy() >= np.float32(self.criteria.confidence)).astype(np.int32)
        rows = batch.select(["key", "class", "confidence"]).append_column("row_index", pa.array(np.arange(len(batch))))
        with self.connection.cursor() as cursor:
            cursor.register("labels", pa.Table.from_batches([rows]))
            selected = cursor.execute(_COPIES, self._parameters(_COPIES)).fetchnumpy()
        copies = np.zeros(len(batch), np.int32)
        copies[selected["row_index"]] = selected["copies"]
        return copies

    def _scan(self, query: str, columns: list[str]) -> dict[str, np.ndarray]:
        """Run a query on these columns of all tables. Raises InputError if a table is damaged."""

        def batches() -> Iterator[pa.RecordBatch]:
            try:
                for path in self.labels.paths:
                    yield from read_batches(path, columns, self.labels.origin)
            except Exception as error:  # DuckDB raises another error instead
                self.read_error = error
                raise

        schema = pa.schema([LABEL_SCHEMA.field(name) for name in columns])
        try:
            return self._execute(query, pa.RecordBatchReader.from_batches(schema, batches()))
        except Exception as error:
            raise self.read_error or error from None

    def _parameters(self, query: str) -> dict[str, Any]:
        return {name: value for name, value in vars(self.criteria).items() if f"${name}" in query}

    def _execute(self, query: str, rows: pa.RecordBatchReader | None = None) -> dict[str, np.ndarray]:
        """Run a query and return its columns. rows: content of the table `labels` in the query.

        The query runs in another thread: in the main thread, DuckDB delays Ctrl-C and raises another error for it.
        """

        def run_query() -> dict[str, np.ndarray]:
            if rows is not None:
                self.connection.register("labels", rows)
            return self.connection.execute(query, self._parameters(query)).fetchnumpy()

        future = self.worker.submit(run_query)
        try:
            return future.result()
        except BaseException:
            while not future.done():  # repeated, because an interrupt before the query starts has no effect
                self.connection.interrupt()
                wait([future], 0.05)
            raise


@contextmanager
def open_ranking(labels: Labels, criteria: Criteria, spill: Path) -> Iterator[Ranking]:
    """Open a ranking for the block. Raises OSError if the disk is full.

    spill: temporary folder for data beyond MEMORY_LIMIT; it is removed at the end of the block.
    """
    import duckdb  # here, because training reads selections without it

    try:
        with duckdb.connect() as connection, ThreadPoolExecutor(1) as worker:
            connection.execute(f"SET memory_limit = '{MEMORY_LIMIT}'; SET threads = {THREADS}")
            connection.execute("SET enable_progress_bar = false; SET temp_directory = $1", [str(spill)])
            yield Ranking(labels, criteria, connection, worker)
    except (duckdb.IOException, duckdb.OutOfMemoryException) as error:
        reason = str(error).partition("\n")[0].partition(": ")[2].rstrip(".")
        message = f"DuckDB cannot sort the rows ({reason}); free memory or disk space"
        raise OSError(errno.ENOSPC, message, str(spill.parent)) from error
    finally:
        with deferred():
            shutil.rmtree(spill, ignore_errors=True)
