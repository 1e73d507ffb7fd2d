"""Evaluation of trained models on labeled sets: what the tasks have in common."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lambdanets.data.batches import Batches, BatchSlice
from lambdanets.data.image_search import describe_classes, describe_left_out
from lambdanets.errors import InputError
from lambdanets.progress import track
from lambdanets.records import write_json


class Evaluation(ABC):
    """The scores of a model on the readable images of a labeled set."""

    unreadable: list[str]  # one message per unreadable image

    @abstractmethod
    def metrics(self) -> Mapping[str, float | None]:
        """Metrics by name, as in metrics.csv; None for those that the set does not define."""

    def to_dict(self) -> dict[str, Any]:
        """All scores, for scores.json and result.json."""
        return dict(self.metrics())

    @abstractmethod
    def summary(self) -> str:
        """The most important metrics, for the line of an epoch."""

    def lines(self) -> list[str]:
        """The scores as lines of text, for the end of training and of an evaluation."""
        return [self.summary()]

    @abstractmethod
    def counts(self) -> str:
        """The number of images, and of what was found in them."""


class Evaluator(ABC):
    """Compares a model's predictions with the labels of a set, and scores them.

    Images are measured one after the other, in one process or in several; a score takes the
    measures of all. Training validates with it, and `evaluate` and the commands call it.

    source: description of the images. left_out: number of files or annotations that are not used, by reason.
    """

    def __init__(
        self, predictor: Any, images: Any, source: str = "", left_out: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        self.predictor, self.images = predictor, images
        self.source, self.left_out = source, dict(left_out)

    def describe(self) -> list[str]:
        """Describe the images, for the command."""
        source = [f"images: {self.source}"] if self.source else []
        return [*source, describe_classes(self.predictor.card.classes), describe_left_out(self.left_out)]

    @abstractmethod
    def batches(self, batch_size: int, workers: int = 0, batch_slice: BatchSlice | None = None) -> Batches[Any]:
        """Return the batches of the set, or of this rank's images, in order."""

    @abstractmethod
    def measure(self, batch: Any) -> list[Any]:
        """Return a tuple for each readable image, its index first, that can be pickled."""

    @abstractmethod
    def score(self, measures: list[Any], unreadable: list[str]) -> Any:
        """Return the `Evaluation` of measures, in any order."""

    def write(self, evaluation: Any, folder: Path) -> None:
        """Write scores.json and figures into a folder."""
        write_json(folder / "scores.json", evaluation.to_dict(), 2)
        self.draw(evaluation, folder)

    def draw(self, evaluation: Any, folder: Path) -> None:  # noqa: B027 - a task may have no figures
        """Draw figures into a folder."""

    def default_batch_size(self) -> int:
        """Return the number of images per forward pass if none is given."""
        return 1

    def evaluate(self, batch_size: int | None = None, workers: int = 0) -> Any:
        """Return the `Evaluation` of the set. Raises InputError if all images are unreadable."""
        batch_size = batch_size or self.default_batch_size()
        measures: list[Any] = []
        unreadable: list[str] = []
        with self.batches(batch_size, workers) as batches:
            for batch in track(batches, "evaluating", len(batches), "batches"):
                unreadable += batch.unreadable
                measures += self.measure(batch)
        if not measures:
            first = unreadable[0]
            raise InputError(f"none of the {len(self.images)} images could be read; the first: {first}")
        return self.score(measures, unreadable)


def format_score(value: float | None) -> str:
    """Format a score with four digits, or as a dash if there is none."""
    return "-" if value is None else f"{value:.4f}"
