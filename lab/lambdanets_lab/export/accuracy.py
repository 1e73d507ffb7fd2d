"""Accuracy of exported models on validation data, and calibration data for int8 quantization."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lambdanets.data.datasets import remap_labels
from lambdanets.data.labeled_images import LabeledImages, SelectedImages
from lambdanets.errors import InputError
from lambdanets.inference.classifier import ClassificationEvaluator, Classifier, open_splits_of
from lambdanets.inference.detector import Detector
from lambdanets_lab.export.quantization import Run, Validation, calibration_indices


def open_validation_data(model: Classifier | Detector, data: str, shape: Sequence[int], *, dynamic: bool) -> Validation:
    """Open the validation and calibration data of a model.

    data: for a classifier, a dataset as for `open_splits`: the training split is for calibration, the validation split
        for accuracy. For a detector, a folder of calibration images, or "digits" for the scattered digits; accuracy is
        measured on the validation data in the model card.
    shape: shape of the graph's input images. dynamic: whether the graph accepts images of other shapes.
    """
    if isinstance(model, Classifier):
        splits = open_splits_of(model.card, data)
        train, validation = (
            remap_labels(images, splits.classes, model.classes, splits.source)
            for images in (splits.train, splits.validation)
        )
        return _ClassifierValidation(model, train, validation, shape[0])
    from lambdanets_lab.export.detector_accuracy import open_detector_validation  # needs the extra "detection"

    return open_detector_validation(model, data, (shape[2], shape[3]), dynamic=dynamic)


@dataclass(frozen=True, eq=False)
class _ClassifierValidation:
    """Validation and calibration images of a classifier, in batches of constant size."""

    classifier: Classifier
    train: LabeledImages
    validation: LabeledImages
    batch_size: int
    metric: str = "top-1 accuracy"

    def __len__(self) -> int:
        return len(self.validation)

    def calibration(self) -> list[Tensor]:
        return [images for images, _, _ in self._batches(self.train, calibration_indices(len(self.train)))]

    def accuracy(self, run: Run, indices: Sequence[int]) -> tuple[float, list[float]]:
        correct = torch.zeros(len(indices))
        count = 0
        for images, labels, positions in self._batches(self.validation, indices):
            predicted = run(images)[0][: len(labels)].argmax(1)
            correct[positions] = (predicted == labels).float()
            count += len(labels)
        if not count:
            raise InputError(f"none of {len(indices)} validation images could be read")
        return float(correct.sum()) / count, correct.tolist()

    def _batches(self, images: LabeledImages, indices: Sequence[int]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield images padded to the batch size; labels and positions in `indices` exclude the padding."""
        labels = [int(images.labels[index]) for index in indices]
        chosen = SelectedImages(images, indices, labels)
        with ClassificationEvaluator(self.classifier, chosen).batches(self.batch_size) as batches:
            for batch in batches:
                if count := len(batch.labels):
                    padding = batch.images[:1].expand(self.batch_size - count, -1, -1, -1)
                    yield torch.cat((batch.images, padding)), batch.labels, batch.indices
