"""Evaluation of trained models on datasets."""

import os
from typing import TYPE_CHECKING

import torch
from pydantic import PositiveInt

from lambdanets.data.coco.sets import report_problems
from lambdanets.errors import InputError, explain_missing_extras
from lambdanets.inference.classifier import Classifier
from lambdanets.inference.detector import Detector
from lambdanets.inference.loading import load
from lambdanets.inference.segmenter import Segmenter
from lambdanets.records import Workers, check

if TYPE_CHECKING:
    from lambdanets.inference.classification import ClassificationEvaluation
    from lambdanets.inference.detection import DetectionEvaluation
    from lambdanets.inference.segmentation import SegmentationEvaluation


@explain_missing_extras()
def evaluate(
    model: Classifier | Detector | Segmenter | str | os.PathLike[str],
    data: str | os.PathLike[str] | None = None,
    *,
    images: str | os.PathLike[str] | None = None,
    data_root: str | os.PathLike[str] | None = None,
    batch_size: int | None = None,
    workers: int = 0,
    device: str | torch.device | None = None,
) -> "ClassificationEvaluation | DetectionEvaluation | SegmentationEvaluation":
    """Compute the accuracy of a classifier, the average precision of a detector, or Dice and IoU of a segmenter.

    model: from `load`, or a path as for `load`.
    data: by default the validation data of the training run. For a classifier, a dataset with the same classes, in a
        format of `lambdanets train --data`: its validation split or, if it has none, all images. For a detector or
        segmenter, a COCO instances file with the same categories.
    images: for a detector or segmenter, the images of data: a folder or an uncompressed tar.
    data_root: for a classifier, the folder of a dataset with a timm name such as "torch/cifar10".
    batch_size: images per forward pass. The default is 1 for a detector or segmenter, and for a classifier the maximum
        that fits into memory, up to 128.
    workers: number of data loading processes.
    device: moves the model to it.

    Images are preprocessed as in the model card.
    """
    check("batch_size", batch_size, PositiveInt | None)
    check("workers", workers, Workers)
    if isinstance(model, str | os.PathLike):
        model = load(model, device=device)
    elif not isinstance(model, Classifier | Detector | Segmenter):
        raise InputError(f"model must be a Classifier, a Detector, a Segmenter or a path, got {model!r}")
    elif device is not None:
        model.to(device)
    if isinstance(model, Classifier):
        from lambdanets.inference import classification

        if images is not None:
            raise InputError(f"images must be None for a classifier, got {os.fspath(images)!r}; remove it")
        name, root = (None if path is None else os.fspath(path) for path in (data, data_root))
        return classification.evaluate(model, name, root, batch_size=batch_size, workers=workers)
    if data_root is not None:
        kind = type(model).__name__.lower()
        raise InputError(f"data_root must be None for a {kind}, got {os.fspath(data_root)!r}; use images")
    from lambdanets.inference.annotated_sets import open_evaluation_set

    annotated = open_evaluation_set(model, data, images)
    report_problems(data=annotated)
    if isinstance(model, Segmenter):
        from lambdanets.inference.segmentation import SegmentationEvaluator

        return SegmentationEvaluator(model, annotated).evaluate(batch_size or 1, workers)
    from lambdanets.inference.detection import DetectionEvaluator

    return DetectionEvaluator(model, annotated).evaluate(batch_size or 1, workers)
