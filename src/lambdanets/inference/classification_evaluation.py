"""Evaluation of classifiers on labeled datasets."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lambdanets.data.batches import BatchSlice
from lambdanets.data.datasets import (
    ImageSet,
    LabeledImages,
    Splits,
    open_evaluation_images,
    open_splits,
    remap_labels,
)
from lambdanets.data.labeled_images import Batch, ImageBatches
from lambdanets.device import free_memory
from lambdanets.errors import InputError
from lambdanets.inference.classifier import Classifier
from lambdanets.inference.evaluator import Evaluation, Evaluator
from lambdanets.inference.model_card import DataSource

MAX_BATCH_SIZE = 128


@dataclass(frozen=True, eq=False)
class ClassificationEvaluation(Evaluation):
    """Predictions of a classifier for the n readable images of a labeled dataset, in order.

    classes: class names.
    indices: (n,), indices of the images in the dataset.
    labels, predicted: (n,), class indices.
    confidence: (n,), probability of the predicted class.
    loss: mean cross entropy.
    unreadable: one message per unreadable image.
    source: which images these are.
    left_out: number of files of the dataset that are not used, by reason.
    """

    classes: tuple[str, ...]
    indices: np.ndarray
    labels: np.ndarray
    predicted: np.ndarray
    confidence: np.ndarray
    loss: float
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

    def metrics(self) -> dict[str, float | None]:
        return {"loss": self.loss, "top1": self.top1}

    def summary(self) -> str:
        return f"val loss {self.loss:.3f}  top-1 {self.top1:.4f}"

    def lines(self) -> list[str]:
        return [f"top-1 {self.top1:.4f}"]

    def counts(self) -> str:
        return f"{len(self.labels)} images, {int((self.labels == self.predicted).sum())} correct"

    def __repr__(self) -> str:
        return f"ClassificationEvaluation({len(self.labels)} images, top-1 {self.top1:.4f})"


class ClassificationEvaluator(Evaluator):
    """Measures (index, label, predicted class, its probability, cross entropy) of each image."""

    predictor: Classifier
    images: LabeledImages

    def batches(self, batch_size: int, workers: int = 0, batch_slice: BatchSlice | None = None) -> ImageBatches:
        preprocessing = self.predictor.card.preprocessing
        return ImageBatches(
            self.images,
            preprocessing.transform(),
            channels=preprocessing.channels,
            batch_size=batch_size,
            seed=0,
            training=False,
            workers=workers,
            batch_slice=batch_slice,
        )

    def measure(self, batch: Batch) -> list[Any]:
        if not len(batch.labels):
            return []
        logits, labels = self.predictor.logits(batch.images), batch.labels.cpu()
        confidence, predicted = logits.softmax(dim=1).max(dim=1)
        losses = F.cross_entropy(logits, labels, reduction="none")
        columns = (batch.indices, labels, predicted, confidence, losses)
        return list(zip(*(column.tolist() for column in columns), strict=True))

    def score(self, measures: list[Any], unreadable: list[str]) -> ClassificationEvaluation:
        indices, labels, predicted, confidence, losses = map(np.array, zip(*sorted(measures), strict=True))
        return ClassificationEvaluation(
            self.predictor.classes,
            indices,
            labels,
            predicted,
            confidence.astype(np.float32),
            float(losses.mean()),
            unreadable,
            self.source,
            self.left_out,
        )

    def write(self, evaluation: ClassificationEvaluation, folder: Path) -> None:
        """Write per_class_accuracy.csv, confusion_matrix.csv and confusion_matrix.png."""
        from lambdanets.inference.figures import write_confusion  # it imports Matplotlib

        write_confusion(evaluation, folder)

    def default_batch_size(self) -> int:
        return batch_size_that_fits(self.predictor)


def open_evaluator(
    classifier: Classifier, data: str | None = None, data_root: str | None = None
) -> ClassificationEvaluator:
    """Open the validation split of a dataset with the same classes.

    data: by default the dataset on which the classifier was trained. All images of another dataset are used if it has
        no validation split.
    """
    source = classifier.card.source
    if data is None or _is_same_dataset(data, source.data):
        if not source.data:
            raise InputError("data must be given for a model whose card names no dataset, got none")
        splits = open_splits_of(source, source.data, data_root or source.data_root)
        found = ImageSet(splits.validation, splits.classes, splits.source, splits.left_out)
    else:
        found = open_evaluation_images(data, data_root)
    images = remap_labels(found.images, found.classes, classifier.classes, found.source)
    return ClassificationEvaluator(classifier, images, found.source, found.left_out)


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
