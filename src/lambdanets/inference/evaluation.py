"""Evaluation of trained models of all tasks on labeled sets."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import PositiveInt

from lambdanets.errors import InputError, explain_missing_extras
from lambdanets.inference.loading import load
from lambdanets.inference.predictor import Predictor
from lambdanets.records import Workers, check


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Evaluation:
    """The scores of a model on the readable images of a labeled set.

    scores: for scores.json and result.json.
    metrics: as in metrics.csv; None for those that the set does not define.
    lines: the scores as text, for the end of training and of an evaluation.
    counts: the number of images, and of what was found in them, as text.
    measures: `Predictor.measure` of the images. unreadable: one message for each of the others.
    """

    scores: dict[str, Any]
    metrics: dict[str, float | None]
    lines: list[str]
    counts: str
    measures: Sequence[Any] = ()
    unreadable: Sequence[str] = ()

    def __repr__(self) -> str:
        metrics = (f"{name} {format_score(value)}" for name, value in self.metrics.items())
        return f"{type(self).__name__}({', '.join([self.counts, *metrics])})"


def format_score(value: float | None) -> str:
    """Format a score with four digits, or None as a dash."""
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
    return model.evaluator(**passed).evaluate(batch_size=batch_size, workers=workers)
