"""Evaluation of trained models on labeled sets: what the tasks have in common."""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from pydantic import PositiveInt

from lambdanets.data.batches import Batches
from lambdanets.errors import InputError, explain_missing_extras
from lambdanets.inference.loading import load
from lambdanets.inference.predictor import Predictor
from lambdanets.progress import track
from lambdanets.records import Workers, check, write_json


class Evaluation(ABC):
    """The scores of a model on the readable images of a labeled set."""

    unreadable: list[str]  # one message per unreadable image

    @abstractmethod
    def metrics(self) -> Mapping[str, float | None]:
        """Metrics by name, as in metrics.csv; None for those that the set does not define."""

    def to_dict(self) -> dict[str, Any]:
        """All scores, for scores.json and result.json."""
        return dict(self.metrics())

    def summary(self) -> str:
        """The most important metrics, for the line of an epoch; by default all."""
        return "  ".join(f"{name} {format_score(value)}" for name, value in self.metrics().items())

    def lines(self) -> list[str]:
        """The scores as lines of text, for the end of training and of an evaluation."""
        return [self.summary()]

    @abstractmethod
    def counts(self) -> str:
        """The number of images, and of what was found in them."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.counts()}, {self.summary()})"


class Evaluator(ABC):
    """Compares a model's predictions with the labels of a set, and scores them.

    Images are measured in one process or in several; a score takes the measures of all. Training validates with it, and
    `evaluate` and the commands call it.

    source: description of the images. left_out: number of files or annotations that are not used, by reason.
    """

    def __init__(
        self, predictor: Any, images: Any, source: str = "", left_out: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        self.predictor, self.images = predictor, images
        self.source, self.left_out = source, dict(left_out)

    @abstractmethod
    def batches(self, **options: Any) -> Batches:
        """Return the batches of the set, in order. options: batch_size, workers and batch_slice of `Batches`."""

    @abstractmethod
    def measure(self, batch: Any) -> list[Any]:
        """Return a tuple for each readable image, its index first, that can be pickled."""

    @abstractmethod
    def score(self, measures: list[Any], unreadable: list[str]) -> Any:
        """Return the `Evaluation` of measures, which are in the order of the images."""

    def write(self, evaluation: Any, folder: Path) -> None:
        """Write scores.json and figures into a folder."""
        write_json(folder / "scores.json", evaluation.to_dict(), 2)
        self.draw(evaluation, folder)

    def draw(self, evaluation: Any, folder: Path) -> None:  # noqa: B027 - a task may have no figures
        """Draw figures into a folder."""

    def evaluate(self, batch_size: int | None = None, workers: int = 0) -> Any:
        """Return the `Evaluation` of the set. Raises InputError if all images are unreadable."""
        measures: list[Any] = []
        unreadable: list[str] = []
        batch_size = batch_size or self.predictor.default_batch_size
        with self.batches(batch_size=batch_size, workers=workers) as batches:
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


@explain_missing_extras()
def evaluate(
    model: Predictor | str | os.PathLike[str],
    data: str | os.PathLike[str] | None = None,
    *,
    batch_size: int | None = None,
    workers: int = 0,
    device: str | torch.device | None = None,
    **options: str | os.PathLike[str] | None,
) -> Evaluation:
    """Compute the accuracy of a classifier, the average precision of a detector, or Dice and IoU of a segmenter.

    Args:
        model: from `load`, or a path as for `load`.
        data: by default the validation data of the training run. For a classifier, a dataset with the same classes, in
            a format of `lambdanets train --data`: its validation split or, if it has none, all images. For a detector
            or segmenter, a COCO instances file with the same categories.
        batch_size: images per forward pass; by default 1, and 32 for a classifier.
        workers: number of data loading processes.
        device: moves the model to it.
        options: of a detector or segmenter, images: those of data, a folder or an uncompressed tar. Of a classifier,
            data_root: the folder of a dataset with a timm name such as "torch/cifar10".

    Images are preprocessed as in the model card. Returns an `Evaluation`, whose class depends on the model.
    """
    check("batch_size", batch_size, PositiveInt | None)
    check("workers", workers, Workers)
    if isinstance(model, str | os.PathLike):
        model = load(model, device=device)
    elif not isinstance(model, Predictor):
        raise InputError(f"model must be a model from load or a path, got {model!r}")
    elif device is not None:
        model.to(device)
    passed = {name: os.fspath(path) for name, path in {"data": data, **options}.items() if path is not None}
    evaluation: Evaluation = model.evaluator(**passed).evaluate(batch_size, workers)
    return evaluation
