"""Data for int8 quantization of classifiers: calibration images, and validation images to measure accuracy."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lambdanets.data.labeled_images import LabeledImages
from lambdanets.errors import InputError
from lambdanets.inference.classifier import Classifier
from lambdanets_lab.export.runtimes import Run

MAX_CALIBRATION_IMAGES = 300
MAX_DROP = 0.005  # in accuracy, absolute


@dataclass(frozen=True)
class Quantization:
    """The result of int8 quantization.

    accuracy, float_accuracy: top-1 of the int8 and the float32 file on `images` validation images, in [0, 1].
    float_bytes: size of the float32 files.
    """

    images: int
    accuracy: float
    float_accuracy: float
    float_bytes: int


@dataclass(frozen=True, eq=False)
class Int8Data:
    """Calibration and validation images of a classifier, in batches of constant size."""

    classifier: Classifier
    train: LabeledImages
    validation: LabeledImages
    batch_size: int

    def calibration(self) -> list[Tensor]:
        """Return up to MAX_CALIBRATION_IMAGES random training images as inputs of the graph."""
        generator = torch.Generator().manual_seed(0)
        indices = torch.randperm(len(self.train), generator=generator)[:MAX_CALIBRATION_IMAGES].sort().values.tolist()
        return [images for images, _ in self._batches(self.train.select(indices))]

    def accuracy(self, run: Run) -> float:
        """Return the top-1 of a model file on the validation images, in [0, 1]."""
        correct = count = 0
        for images, labels in self._batches(self.validation):
            correct += int((run(images)[0][: len(labels)].argmax(1) == labels).sum())
            count += len(labels)
        if not count:
            raise InputError(f"none of {len(self.validation)} validation images could be read")
        return correct / count

    def _batches(self, images: LabeledImages) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images padded to the batch size, and labels without the padding."""
        with replace(self.classifier, images=images).batches(batch_size=self.batch_size) as batches:
            for batch in batches:
                if count := len(batch.targets):
                    padding = batch.images[:1].expand(self.batch_size - count, -1, -1, -1)
                    yield torch.cat((batch.images, padding)), batch.targets
