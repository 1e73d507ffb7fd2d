"""What a classifier predicts for a labeled set."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lambdanets.data.datasets import LabeledImages, open_splits, remap_labels
from lambdanets.data.loader import ImageBatches
from lambdanets.device import free_memory
from lambdanets.errors import InputError
from lambdanets.inference.classifier import Classifier
from lambdanets.progress import track

LARGEST_BATCH = 128


@dataclass(frozen=True, eq=False)
class ClassificationEvaluation:
    """What a classifier says of each readable image of a labeled set, in the set's order.

    classes: names of the classes, which labels and predicted number from 0. indices: of the images in the set.
    unreadable: one sentence per image that could not be read.
    """

    classes: tuple[str, ...]
    indices: np.ndarray
    labels: np.ndarray
    predicted: np.ndarray
    confidence: np.ndarray
    unreadable: list[str]

    @property
    def top1(self) -> float:
        """Top-1 accuracy."""
        return float((self.labels == self.predicted).mean())

    @property
    def confusion_matrix(self) -> np.ndarray:
        """How many images of each class (row) were given each class (column), int64 (classes, classes)."""
        matrix = np.zeros((len(self.classes), len(self.classes)), np.int64)
        np.add.at(matrix, (self.labels, self.predicted), 1)
        return matrix

    @property
    def accuracy_by_class(self) -> dict[str, float | None]:
        """The share of each class's images that were given that class, None for a class without images."""
        matrix = self.confusion_matrix
        counts = zip(self.classes, matrix.diagonal().tolist(), matrix.sum(1).tolist(), strict=True)
        return {name: right / images if images else None for name, right, images in counts}

    def __repr__(self) -> str:
        return f"ClassificationEvaluation({len(self.labels)} images, top-1 {self.top1:.4f})"


def batches_for(classifier: Classifier, images: LabeledImages, batch_size: int, workers: int = 0) -> ImageBatches:
    """Batches of a set, in its order, preprocessed for a classifier; workers: processes that decode images."""
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
    """Classify a labeled set. Raises InputError when no image of it can be read."""
    unreadable: list[str] = []
    parts: list[list[Tensor]] = []
    with batches_for(classifier, images, batch_size, workers) as batches:
        for batch in track(batches, "evaluating", len(batches), "batches"):
            unreadable += batch.unreadable
            if len(batch.labels):
                confidence, predicted = classifier.probabilities(batch.images).max(dim=1)
                parts.append([batch.indices, batch.labels, predicted, confidence])
    if not parts:
        raise InputError(f"none of the {len(images)} images could be read; the first: {unreadable[0]}")
    columns = [torch.cat(column).numpy() for column in zip(*parts, strict=True)]
    return ClassificationEvaluation(classifier.classes, columns[0], columns[1], columns[2], columns[3], unreadable)


def evaluate(
    classifier: Classifier,
    data: str | None = None,
    data_root: str | None = None,
    *,
    batch_size: int | None = None,
    workers: int = 0,
) -> ClassificationEvaluation:
    """Classify the validation part of the classifier's own data set, or of another with classes it knows.

    batch_size: by default as many as fit into memory, up to LARGEST_BATCH.
    """
    source = classifier.card.source
    splits = open_splits(
        data or source.data,
        root=data_root or (None if data else source.data_root),
        validation_share=source.validation_share,
        seed=source.seed,
    )
    images = remap_labels(splits.validation, splits.classes, classifier.classes, splits.source)
    return predict_set(classifier, images, batch_size or batch_size_that_fits(classifier), workers)


def batch_size_that_fits(classifier: Classifier, processes: int = 1) -> int:
    """How many images fit into memory, 2 to LARGEST_BATCH, where that many processes share a CPU's.

    An image is taken to need the outputs of all layers at once, which is more than a forward pass holds.
    """
    model, preprocessing = classifier.model, classifier.card.preprocessing
    device = next(model.parameters()).device
    made = 0

    def count(module: nn.Module, inputs: Any, output: Any) -> None:
        nonlocal made
        made += output.nbytes if isinstance(output, Tensor) else 0

    hooks = [module.register_forward_hook(count) for module in model.modules()]
    try:
        side = preprocessing.image_size
        classifier.probabilities(torch.zeros(1, preprocessing.channels, side, side))
    finally:
        for hook in hooks:
            hook.remove()
    free = free_memory(device) // (processes if device.type == "cpu" else 1)
    return max(2, min(LARGEST_BATCH, free // made))
