"""How often a student sees each row of pseudo-labels: DuckDB ranks the rows of each class, out of core.

All confident rows of a class are seen base = per_class // confident times, the first extra = per_class % confident of
them once more. First are the most confident (where base > 0, all alike), then those with the lowest MD5 of seed and
key: 128 bits, which tell all keys apart. So the rows and the seed decide, not files, their order or threads.
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

MEMORY_LIMIT = "1GB"  # of DuckDB, which writes the rest to disk
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
    """What decides which rows are kept. Raises InputError for a number out of its range."""

    confidence: float  # the least
    per_class: int | None  # images; None keeps every row once
    seed: int
    labels: str  # their fingerprint
    ties: str = "md5 of seed and key"  # among equal confidences; selections of before had another hash

    def __post_init__(self) -> None:
        if not 0 <= self.confidence < 1:
            raise InputError(f"confidence must be at least 0 and below 1, got {self.confidence:g}")
        if self.per_class is not None and not 1 <= self.per_class < 1 << 31:
            raise InputError(f"per_class must lie in 1 to {(1 << 31) - 1}, got {self.per_class}")
        if not 0 <= self.seed < 1 << 64:
            raise InputError(f"seed must lie in 0 to {(1 << 64) - 1}, got {self.seed}")


@dataclass
class Ranking:
    """How often each row of a folder's tables is seen. Made by `open_ranking`."""

    labels: Labels
    criteria: Criteria
    connection: "duckdb.DuckDBPyConnection"
    worker: ThreadPoolExecutor
    failure: Exception | None = None  # while a table was read

    def count(self) -> tuple[list[dict[str, Any]], float]:
        """For each class its name, rows, confident rows and images with copies; and the highest confidence of all."""
        self._scan(_COUNT, ["class", "confidence"])
        names = self.labels.origin.classes
        counts = self._execute(_CLASSES.format(len(names)))
        highest = float(counts.pop("highest").max())
        columns = {"class": names} | {name: column.tolist() for name, column in counts.items()}
        return [dict(zip(columns, entry, strict=True)) for entry in zip(*columns.values(), strict=True)], highest

    def find_cuts(self) -> None:
        """Find the last row of each class that is seen once more. Raises InputError if the next one has its key."""
        self._scan(_CUTS, ["key", "class", "confidence"])
        if len(self._execute("SELECT class FROM cuts WHERE twice")["class"]):
            key = self._scan(_TWICE, ["key", "class", "confidence"])["key"][0]
            raise InputError(f"keys of a set must differ from each other, but {key!r} is there twice")

    def copies(self, batch: pa.RecordBatch) -> np.ndarray:
        """How often each row of a batch (n,) is seen, int32; after `count`, and with per_class `find_cuts`.

        Not in the main thread, where DuckDB heeds Ctrl-C late; several threads at a time may call it.
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
            except Exception as error:  # DuckDB raises one of its own
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
        """Run a query on `rows`, which it names labels.

        It runs in another thread: in the main thread DuckDB heeds Ctrl-C late, and raises other errors for it.
        """

        def work() -> dict[str, np.ndarray]:
            if rows is not None:
                self.connection.register("labels", rows)
            return self.connection.execute(query, self._parameters(query)).fetchnumpy()

        future = self.worker.submit(work)
        try:
            return future.result()
        except BaseException:
            while not future.done():  # an interrupt before the query begins has no effect
                self.connection.interrupt()
                wait([future], 0.05)
            raise


@contextmanager
def open_ranking(labels: Labels, criteria: Criteria, spill: Path) -> Iterator[Ranking]:
    """A ranking that writes what exceeds MEMORY_LIMIT into the folder `spill`, which is removed in the end.

    Raises OSError where the disk is full.
    """
    import duckdb  # not in every training, which reads selections

    try:
        with duckdb.connect() as connection, ThreadPoolExecutor(1) as worker:
            connection.execute(f"SET memory_limit = '{MEMORY_LIMIT}'; SET threads = {THREADS}")
            connection.execute("SET enable_progress_bar = false; SET temp_directory = $1", [str(spill)])
            yield Ranking(labels, criteria, connection, worker)
    except (duckdb.IOException, duckdb.OutOfMemoryException) as error:
        reason = str(error).partition("\n")[0].partition(": ")[2].rstrip(".")
        sentence = f"DuckDB cannot sort the rows ({reason}); free memory or disk space"
        raise OSError(errno.ENOSPC, sentence, str(spill.parent)) from error
    finally:
        with deferred():
            shutil.rmtree(spill, ignore_errors=True)
