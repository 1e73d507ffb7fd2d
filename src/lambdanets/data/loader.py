"""Batches of labeled images."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from lambdanets.data.batches import Batches, Sample
from lambdanets.data.labeled_images import LabeledImages
from lambdanets.errors import InputError

_MODES = {1: "L", 3: "RGB"}


class Batch(NamedTuple):
    """Images (b, c, h, w) float32, labels (b,) and indices in the set (b,), both int64.

    Unreadable images are left out and listed in `unreadable` ("name: reason"). A batch may thus be smaller, or empty:
    `images` is then of shape (0,). step_images: images in the whole step, over all ranks and micro-batches. targets:
    distributions over the classes (b, classes) float32, if the batch has soft labels, else None. soft: (b,) bool, True
    for soft labels, whose `labels` are the most probable classes.
    """

    images: Tensor
    labels: Tensor
    indices: Tensor
    unreadable: list[str]
    step_images: int = 0
    targets: Tensor | None = None
    soft: Tensor | None = None


class ImageBatches(Batches[Batch]):
    """`Batches` of labeled images, with at least two images per training micro-batch, which batch norm needs.

    transform: from a Pillow image, mode "L" or "RGB" by `channels`, to a tensor (c, h, w), of one shape for all images.
    more: arguments of `Batches`.
    """

    def __init__(
        self, images: LabeledImages, transform: Callable[[Image.Image], Tensor], *, channels: int, **more: Any
    ) -> None:
        if channels not in _MODES:
            raise InputError(f"channels must be 1 or 3, got {channels}")
        super().__init__(images, _LoadTransformed(transform, _MODES[channels]), _collate, min_micro_batch=2, **more)


class _LoadTransformed:
    """Loads and transforms an image, with its label. A class, because spawned workers need to unpickle it."""

    def __init__(self, transform: Callable[[Image.Image], Tensor], mode: str) -> None:
        self._transform = transform
        self._mode = mode

    def __call__(self, images: LabeledImages, index: int) -> tuple[Tensor, int | np.ndarray]:
        image, label = images.load(index)
        return self._transform(image.convert(self._mode)), label


def _collate(samples: list[Sample]) -> Batch:
    read = [sample for sample in samples if sample.content is not None]
    targets = [sample.content[1] for sample in read]
    soft = [isinstance(target, np.ndarray) for target in targets]
    labels = [int(np.argmax(target)) if isinstance(target, np.ndarray) else target for target in targets]
    return Batch(
        images=torch.stack([sample.content[0] for sample in read]) if read else torch.empty(0),
        labels=torch.tensor(labels, dtype=torch.int64),
        indices=torch.tensor([sample.image_index for sample in read], dtype=torch.int64),
        unreadable=[sample.unreadable for sample in samples if sample.content is None],
        step_images=samples[0].step_images,
        targets=_distributions(targets) if any(soft) else None,
        soft=torch.tensor(soft) if any(soft) else None,
    )


def _distributions(labels: Sequence[int | np.ndarray]) -> Tensor:
    classes = next(len(label) for label in labels if isinstance(label, np.ndarray))
    rows = np.zeros((len(labels), classes), np.float32)
    for row, label in zip(rows, labels, strict=True):
        if isinstance(label, np.ndarray):
            row[:] = label
        else:
            row[label] = 1
    return torch.from_numpy(rows)
