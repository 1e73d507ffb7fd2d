"""What a classifier predicts: for a labeled set, and for image files."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lambdanets.data.datasets import LabeledImages, open_splits, remap_labels
from lambdanets.data.images import UnreadableImage, read_image
from lambdanets.data.loader import ImageBatches
from lambdanets.device import free_memory
from lambdanets.errors import InputError
from lambdanets.inference.classifier import Classifier
from lambdanets.progress import track

LARGEST_BATCH = 128


@dataclass(frozen=True)
class Predictions:
    """Index, label, predicted class and confidence of each readable image of a labeled set, in the set's order.

    unreadable: one sentence per image that could not be read.
    """

    indices: np.ndarray
    labels: np.ndarray
    predicted: np.ndarray
    confidence: np.ndarray
    unreadable: list[str]

    @property
    def top1(self) -> float:
        """Top-1 accuracy."""
        return float((self.labels == self.predicted).mean())


@dataclass(frozen=True)
class Prediction:
    """The most probable classes of one image file, most probable first."""

    path: Path
    classes: tuple[str, ...]
    probabilities: tuple[float, ...]


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


def predict_set(classifier: Classifier, images: LabeledImages, batch_size: int, workers: int = 0) -> Predictions:
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
    return Predictions(columns[0], columns[1], columns[2], columns[3], unreadable)


def evaluate(
    classifier: Classifier,
    data: str | None = None,
    data_root: str | None = None,
    *,
    batch_size: int | None = None,
    workers: int = 0,
) -> Predictions:
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


def predict_files(
    classifier: Classifier, paths: Iterable[Path], top: int, unreadable: list[str]
) -> Iterator[Prediction]:
    """Classify image files of any mode, one after the other; what cannot be read is added to `unreadable`."""
    for path in paths:
        try:
            image = read_image(path)
        except UnreadableImage as error:
            unreadable.append(str(error))
            continue
        best = classifier.predict(image).topk(min(top, len(classifier.classes)))
        names = tuple(classifier.classes[i] for i in best.indices.tolist())
        yield Prediction(path, names, tuple(round(p, 6) for p in best.values.tolist()))
