"""Evaluation of trained models on datasets."""

import os

import torch
from pydantic import PositiveInt

from lambdanets.errors import InputError, explain_missing_extras
from lambdanets.inference.evaluator import Evaluation
from lambdanets.inference.loading import load
from lambdanets.inference.predictor import Predictor
from lambdanets.records import Workers, check


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
    model.check_options(model.evaluator, passed)
    evaluation: Evaluation = model.evaluator(**passed).evaluate(batch_size, workers)
    return evaluation
