"""Ranks the rows of pseudo-labels within each class, with DuckDB, out of core, and counts the copies of each.

All confident rows of a class get base = per_class // confident copies, and the first extra = per_class % confident of
them one more. They are ordered by confidence (only if base is 0), then by the MD5 of seed and key, which has no
collisions in practice. So the result depends only on the rows and the seed, not on files, their order or threads.
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

from lambdanets.errors import InputError
from lambdanets.signals import deferred
from lambdanets.training.pseudo_labels.tables import SCHEMA, Labels, read_batches

if TYPE_CHECKING:
    import duckdb

MEMORY_LIMIT = "1GB"  # of DuckDB, which spills to disk
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
_CUTS = f"""
CREATE TABLE cuts AS
SELECT class, score, hash, lead(score) OVER ranks = score AND lead(hash) OVER ranks = hash AS twice
FROM (
    SELECT class, extra, {_SCORE} AS score, {_HASH} AS hash
    FROM labels JOIN classes USING (class) WHERE extra > 0 AND confidence >= $confidence::FLOAT
)
WINDOW ranks AS (PARTITION BY class ORDER BY score DESC, hash) QUALIFY row_number() OVER ranks = extra
"""
_TWICE = f"SELECT key FROM labels WHERE {_HASH} IN (SELECT hash FROM cuts WHERE twice) LIMIT 1"
_COPIES = f"""
SELECT place, base + CASE WHEN {_SCORE} = cuts.score THEN {_HASH} <= cuts.hash
                          ELSE coalesce({_SCORE} > cuts.score, false) END::INT AS copies
FROM labels JOIN classes USING (class) LEFT JOIN cuts USING (class) WHERE confidence >= $confidence::FLOAT
"""


@dataclass(frozen=True)
class Criteria:
    """Which rows are kept. Raises InputError for a number out of range."""

    confidence: float  # minimum
    per_class: int | None  # images; None keeps every row once
    seed: int
    labels: str  # fingerprint
    ties: str = "md5 of seed and key"  # order of equal confidences; former selections had another hash

    def __post_init__(self) -> None:
        if not 0 <= self.confidence < 1:
            raise InputError(f"confidence must be in [0, 1), got {self.confidence:g}")
        if self.per_class is not None and not 1 <= self.per_class < 1 << 31:
            raise InputError(f"per_class must be in [1, {(1 << 31) - 1}], got {self.per_class}")
        if not 0 <= self.seed < 1 << 64:
            raise InputError(f"seed must be in [0, {(1 << 64) - 1}], got {self.seed}")


@dataclass
class Ranking:
    """The number of copies of each row in a folder's tables. Created by `open_ranking`."""

    labels: Labels
    criteria: Criteria
    connection: "duckdb.DuckDBPyConnection"
    worker: ThreadPoolExecutor
    failure: Exception | None = None  # raised while a table was read

    def count(self) -> tuple[list[dict[str, Any]], float]:
        """Name, rows, confident rows and images (with copies) of each class, and the maximum confidence."""
        self._scan(_COUNT, ["class", "confidence"])
        names = self.labels.origin.classes
        counts = self._execute(_CLASSES.format(len(names)))
        highest = float(counts.pop("highest").max())
        columns = {"class": names} | {name: column.tolist() for name, column in counts.items()}
        return [dict(zip(columns, entry, strict=True)) for entry in zip(*columns.values(), strict=True)], highest

    def find_cuts(self) -> None:
        """Find the last row of each class with an extra copy. Raises InputError if the next one has the same key."""
        self._scan(_CUTS, ["key", "class", "confidence"])
        if len(self._execute("SELECT class FROM cuts WHERE twice")["class"]):
            key = self._scan(_TWICE, ["key", "class", "confidence"])["key"][0]
            raise InputError(f"keys of a data set must be unique, got {key!r} twice")

    def copies(self, batch: pa.RecordBatch) -> np.ndarray:
        """Copies of each row of a batch, int32 (n,). Call `count` before, and with per_class `find_cuts`.

        Thread-safe. Do not call it in the main thread, where DuckDB handles Ctrl-C late.
        """
        if self.criteria.per_class is None:
            return (batch.column("confidence").to_numpy() >= np.float32(self.criteria.confidence)).astype(np.int32)
        rows = batch.select(["key", "class", "confidence"]).append_column("place", pa.array(np.arange(len(batch))))
        with self.connection.cursor() as cursor:
            cursor.register("labels", pa.Table.from_batches([rows]))
            seen = cursor.execute(_COPIES, self._parameters(_COPIES)).fetchnumpy()
        copies = np.zeros(len(batch), np.int32)
        copies[seen["place"]] = seen["copies"]
        return copies

    def _scan(self, query: str, columns: list[str]) -> dict[str, np.ndarray]:
        """Run a query on these columns of all rows. Raises InputError for a damaged table."""

        def batches() -> Iterator[pa.RecordBatch]:
            try:
                for path in self.labels.paths:
                    yield from read_batches(path, columns, self.labels.origin)
            except Exception as error:  # DuckDB would replace it by its own
                self.failure = error
                raise

        schema = pa.schema([SCHEMA.field(name) for name in columns])
        try:
            return self._execute(query, pa.RecordBatchReader.from_batches(schema, batches()))
        except Exception as error:
            raise self.failure or error from None

    def _parameters(self, query: str) -> dict[str, Any]:
        return {name: value for name, value in vars(self.criteria).items() if f"${name}" in query}

    def _execute(self, query: str, rows: pa.RecordBatchReader | None = None) -> dict[str, np.ndarray]:
        """Run a query; `rows` is its table labels.

        It runs in another thread: in the main thread DuckDB handles Ctrl-C late, and raises other errors for it.
        """

        def work() -> dict[str, np.ndarray]:
            if rows is not None:
                self.connection.register("labels", rows)
            return self.connection.execute(query, self._parameters(query)).fetchnumpy()

        future = self.worker.submit(work)
        try:
            return future.result()
        except BaseException:
            while not future.done():  # an interrupt before the query starts has no effect
                self.connection.interrupt()
                wait([future], 0.05)
            raise


@contextmanager
def open_ranking(labels: Labels, criteria: Criteria, spill: Path) -> Iterator[Ranking]:
    """A ranking that spills what exceeds MEMORY_LIMIT into the folder `spill`, which is removed afterwards.

    Raises OSError if the disk is full.
    """
    import duckdb  # not needed to read a selection in training

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
