"""Reads tables of pseudo-labels once through, a few rows at a time, several files at once."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa

from lambdanets.errors import InputError
from lambdanets.training.pseudo_labels.ranking import distrust
from lambdanets.training.pseudo_labels.tables import Origin, read_batches

Done = TypeVar("Done")


@dataclass(frozen=True)
class Rows:
    """Some rows of a file: all of them in `batch`; of those confident enough `places` in it, and what ranks them.

    places, classes, distrusts (n,)
    """

    batch: pa.RecordBatch
    places: np.ndarray
    classes: np.ndarray
    distrusts: np.ndarray

    def keys(self, which: np.ndarray) -> pa.StringArray:
        """Keys of some of the n confident rows, by number."""
        return self.batch.column("key").take(pa.array(self.places[which]))


@dataclass(frozen=True)
class Scan:
    """The files of a folder of pseudo-labels, all of one origin, and the least confidence of a row that counts."""

    paths: Sequence[Path]
    origin: Origin
    confidence: float

    @property
    def classes(self) -> int:
        return len(self.origin.classes)

    @property
    def least(self) -> np.float32:
        """The least confidence as a float32, as confidences are: 0.3 in a table is at least 0.3."""
        return np.float32(self.confidence)

    def read(self, path: Path, columns: Sequence[str]) -> Iterator[Rows]:
        """A file's rows with some columns, class and confidence among them. Raises InputError for a damaged file."""
        for batch in read_batches(path, columns, self.origin):
            classes = batch.column("class").to_numpy()
            confidences = batch.column("confidence").to_numpy() + np.float32(0)  # -0 becomes 0
            if len(classes) and not 0 <= classes.min() <= classes.max() < self.classes:
                raise InputError(
                    f"{path} is damaged: class must lie in 0 to {self.classes - 1}, "
                    f"got {classes.min()} to {classes.max()}"
                )
            if not ((confidences >= 0) & (confidences <= 1)).all():  # what is not a number is neither
                raise InputError(f"{path} is damaged: confidence must lie in 0 to 1")
            places = np.flatnonzero(confidences >= self.least)
            yield Rows(batch, places, classes[places], distrust(confidences[places]))

    def visit(self, columns: Sequence[str], visit: Callable[[Rows], None]) -> None:
        """Call visit, from several threads, with all rows of all files, in no order."""

        def read(path: Path) -> None:
            for rows in self.read(path, columns):
                visit(rows)

        in_threads(read, self.paths)


def in_threads(function: Callable[[Path], Done], paths: Sequence[Path]) -> list[Done]:
    """What a function makes of each path, in their order; an error or Ctrl-C ends all soon."""
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as executor:
        futures = [executor.submit(function, path) for path in paths]
        try:
            return [future.result() for future in futures]
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            raise
