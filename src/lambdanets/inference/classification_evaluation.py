"""Evaluation of classifiers on labeled datasets."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch.nn.functional as F

from lambdanets.data.datasets import (
    ImageSet,
    LabeledImages,
    Splits,
    open_evaluation_images,
    open_splits,
    remap_labels,
)
from lambdanets.data.loader import Batch, ImageBatches
from lambdanets.data.order import BatchSlice
from lambdanets.errors import InputError
from lambdanets.inference.classifier import Classifier
from lambdanets.inference.evaluator import Evaluation, Evaluator
from lambdanets.inference.model_card import ClassifierCard


@dataclass(frozen=True, eq=False, repr=False)
class ClassificationEvaluation(Evaluation):
    """Predictions of a classifier for the n readable images of a labeled dataset, in order.

    classes: class names.
    indices: (n,), indices of the images in the dataset.
    labels, predicted: (n,), class indices.
    confidence: (n,), probability of the predicted class.
    loss: mean cross entropy.
    unreadable: one message per unreadable image.
    """

    classes: tuple[str, ...]
    indices: np.ndarray
    labels: np.ndarray
    predicted: np.ndarray
    confidence: np.ndarray
    loss: float
    unreadable: list[str]

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

    def to_dict(self) -> dict[str, Any]:
        return {"top1": round(self.top1, 6), "validation_images": len(self.labels)}

    def summary(self) -> str:
        return f"val loss {self.loss:.3f}  top-1 {self.top1:.4f}"

    def lines(self) -> list[str]:
        return [f"top-1 {self.top1:.4f}"]

    def counts(self) -> str:
        return f"{len(self.labels)} images, {int((self.labels == self.predicted).sum())} correct"


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
        )

    def write(self, evaluation: ClassificationEvaluation, folder: Path) -> None:
        """Write per_class_accuracy.csv, confusion_matrix.csv and confusion_matrix.png, too."""
        from lambdanets.inference.figures import write_confusion  # it imports Matplotlib

        write_confusion(evaluation, folder)
        super().write(evaluation, folder)

    def draw(self, evaluation: ClassificationEvaluation, folder: Path) -> None:
        """Draw predictions.png."""
        from lambdanets.inference.figures import draw_predictions

        draw_predictions(evaluation, self.images, folder)


def open_evaluator(
    classifier: Classifier, data: str | None = None, data_root: str | None = None
) -> ClassificationEvaluator:
    """Open the validation split of a dataset with the same classes.

    data: by default the dataset on which the classifier was trained. All images of another dataset are used if it has
        no validation split.
    """
    recipe = classifier.card.recipe
    known = recipe.get("data")
    if data is None or _is_same_dataset(data, known):
        if not known:
            raise InputError("data must be given for a model whose card names no dataset, got none")
        splits = open_splits_of(classifier.card, known, data_root or recipe.get("data_root"))
        found = ImageSet(splits.validation, splits.classes, splits.source, splits.left_out)
    else:
        found = open_evaluation_images(data, data_root)
    images = remap_labels(found.images, found.classes, classifier.classes, found.source)
    return ClassificationEvaluator(classifier, images, found.source, found.left_out)


def open_splits_of(card: ClassifierCard, data: str, root: str | None) -> Splits:
    """Open a dataset with the splits of a training run.

    Raises InputError if it is the dataset of the run, but other images would be held out.
    """
    share, seed = card.recipe.get("validation_share", 0.2), card.recipe.get("seed", 0)
    splits = open_splits(data, root=root, validation_share=share, seed=seed)
    changed = card.held_out and splits.held_out != card.held_out
    if changed and _is_same_dataset(data, card.recipe.get("data")):
        raise InputError(
            f"data must have the same images as when the run started, got '{data}' with others, of "
            "which it may have trained on any; restore them, or give a folder of new images with --data"
        )
    return splits


def _is_same_dataset(data: str, other: str | None) -> bool:
    """Whether two names or paths of datasets are the same. A dataset that was moved is another one."""
    if not other or data.rstrip("/") == other.rstrip("/"):
        return bool(other)
    return other != "digits" and os.path.realpath(data) == os.path.realpath(other)
