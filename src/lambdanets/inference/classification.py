"""Evaluation of classifiers on labeled datasets."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lambdanets.data.datasets import (
    EvaluationImages,
    LabeledImages,
    Splits,
    open_evaluation_images,
    open_splits,
    remap_labels,
)
from lambdanets.data.loader import ImageBatches
from lambdanets.device import free_memory
from lambdanets.errors import InputError
from lambdanets.inference.classifier import Classifier
from lambdanets.inference.model_card import DataSource
from lambdanets.progress import track

MAX_BATCH_SIZE = 128


@dataclass(frozen=True, eq=False)
class ClassificationEvaluation:
    """Predictions of a classifier for the n readable images of a labeled dataset, in order.

    classes: class names.
    indices: (n,), indices of the images in the dataset.
    labels, predicted: (n,), class indices.
    confidence: (n,), probability of the predicted class.
    unreadable: one message per unreadable image.
    source: which images these are.
    left_out: number of files of the dataset that are not used, by reason.
    """

    classes: tuple[str, ...]
    indices: np.ndarray
    labels: np.ndarray
    predicted: np.ndarray
    confidence: np.ndarray
    unreadable: list[str]
    source: str = ""
    left_out: Mapping[str, int] = field(default_factory=dict)

    @property
    def top1(self) -> float:
        """Top-1 accuracy."""
        return float((self.labels == self.predicted).mean())

    @property
    def confusion_matrix(self) -> np.ndarray:
        """The number of images per true class (rows) and predicted class (columns), int64 (classes, classes)."""
        matrix = np.zeros((len(self.classes), len(self.classes)), np.int64)
        np.add.at(matrix, (self.labels, self.predicted), 1)
        return matrix

    @property
    def accuracy_by_class(self) -> dict[str, float | None]:
        """Accuracy by class name; None for a class without images."""
        matrix = self.confusion_matrix
        counts = zip(self.classes, matrix.diagonal().tolist(), matrix.sum(1).tolist(), strict=True)
        return {name: correct / images if images else None for name, correct, images in counts}

    def __repr__(self) -> str:
        return f"ClassificationEvaluation({len(self.labels)} images, top-1 {self.top1:.4f})"


def make_batches(classifier: Classifier, images: LabeledImages, batch_size: int, workers: int = 0) -> ImageBatches:
    """Return the batches of a dataset, in order, with the preprocessing of a classifier.

    workers: number of data loading processes.
    """
    preprocessing = classifier.card.preprocessing
    return ImageBatches(
        images,
        preprocessing.transform(),
        channels=preprocessing.channels,
        batch_size=batch_size,
        seed=0,
        training=False,
        workers=workers,
    )


def predict_set(
    classifier: Classifier, images: LabeledImages, batch_size: int, workers: int = 0
) -> ClassificationEvaluation:
    """Classify a labeled dataset. Raises InputError if all images are unreadable."""
    unreadable: list[str] = []
    rows: list[list[Tensor]] = []
    with make_batches(classifier, images, batch_size, workers) as batches:
        for batch in track(batches, "evaluating", len(batches), "batches"):
            unreadable += batch.unreadable
            if len(batch.labels):
                confidence, predicted = classifier.probabilities(batch.images).max(dim=1)
                rows.append([batch.indices, batch.labels, predicted, confidence])
    if not rows:
        raise InputError(f"none of the {len(images)} images could be read; the first: {unreadable[0]}")
    indices, labels, predictions, confidences = (torch.cat(column).numpy() for column in zip(*rows, strict=True))
    return ClassificationEvaluation(classifier.classes, indices, labels, predictions, confidences, unreadable)


def evaluate(
    classifier: Classifier,
    data: str | None = None,
    data_root: str | None = None,
    *,
    batch_size: int | None = None,
    workers: int = 0,
) -> ClassificationEvaluation:
    """Evaluate a classifier on the validation split of a dataset with the same classes.

    data: by default the dataset on which the classifier was trained. All images of another dataset are used if it has
        no validation split.
    batch_size: by default the maximum that fits into memory, up to MAX_BATCH_SIZE.
    """
    source = classifier.card.source
    if data is None or _is_same_dataset(data, source.data):
        if not source.data:
            raise InputError("data must be given for a model whose card names no dataset, got none")
        splits = open_splits_of(source, source.data, data_root or source.data_root)
        found = EvaluationImages(splits.validation, splits.classes, splits.source, splits.left_out)
    else:
        found = open_evaluation_images(data, data_root)
    images = remap_labels(found.images, found.classes, classifier.classes, found.source)
    evaluation = predict_set(classifier, images, batch_size or batch_size_that_fits(classifier), workers)
    return replace(evaluation, source=found.source, left_out=found.left_out)


def open_splits_of(source: DataSource, data: str, root: str | None) -> Splits:
    """Open a dataset with the splits of a training run.

    Raises InputError if it is the dataset of the run, but other images would be held out.
    """
    splits = open_splits(data, root=root, validation_share=source.validation_share, seed=source.seed)
    changed = source.held_out and splits.held_out != source.held_out
    if changed and _is_same_dataset(data, source.data):
        raise InputError(
            f"data must have the same images as when the run started, got '{data}' with others, of "
            "which it may have trained on any; restore them, or give a folder of new images with --data"
        )
    return splits


def _is_same_dataset(data: str, other: str) -> bool:
    """Whether two names or paths of datasets are the same. A dataset that was moved is another one."""
    if not other or data.rstrip("/") == other.rstrip("/"):
        return bool(other)
    return other != "digits" and os.path.realpath(data) == os.path.realpath(other)


def batch_size_that_fits(classifier: Classifier, processes: int = 1) -> int:
    """Estimate the maximum batch size that fits into memory, from 2 to MAX_BATCH_SIZE.

    processes: number of ranks on this host, which share its memory if the model is on the CPU.

    The estimate is based on the total size of the outputs of all layers, which a forward pass without gradients frees
    early; the workspaces of operations are not counted.
    """
    model, preprocessing = classifier.model, classifier.card.preprocessing
    device = next(model.parameters()).device
    output_bytes = 0

    def add_bytes(module: nn.Module, inputs: Any, output: Any) -> None:
        nonlocal output_bytes
        output_bytes += output.nbytes if isinstance(output, Tensor) else 0

    hooks = [module.register_forward_hook(add_bytes) for module in model.modules()]
    try:
        side = preprocessing.image_size
        classifier.probabilities(torch.zeros(1, preprocessing.channels, side, side))
    finally:
        for hook in hooks:
            hook.remove()
    free_bytes = free_memory(device) // (processes if device.type == "cpu" else 1)
    return max(2, min(MAX_BATCH_SIZE, free_bytes // output_bytes))
