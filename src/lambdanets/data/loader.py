"""Batches of labelled images."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from lambdanets.data.batches import Batches, Sample
from lambdanets.data.labelled_images import LabelledImages
from lambdanets.errors import InputError

_MODES = {1: "L", 3: "RGB"}


class Batch(NamedTuple):
    """Images (b, c, h, w), their labels (b,) and their numbers in the set (b,), both int64.

    Images that could not be read are left out and named in `unreadable` ("name: reason"), so a batch may be smaller
    than asked for, or empty: b is then 0 and `images` has the shape (0,). step_images: how many images the whole step
    was to have, over all processes and parts. targets: (b, classes) float32, where some label is a distribution over
    the classes; those rows are True in soft (b,), and their label is the most probable class.
    """

    images: Tensor
    labels: Tensor
    indices: Tensor
    unreadable: list[str]
    step_images: int = 0
    targets: Tensor | None = None
    soft: Tensor | None = None


class ImageBatches(Batches[Batch]):
    """`Batches` of labelled images. In training a part has at least two, as batch norm cannot use one.

    `transform` takes a Pillow image, "L" or "RGB" by `channels`, and gives a tensor (c, h, w) of the same shape for
    every image. more: as `Batches` takes.
    """

    def __init__(
        self, images: LabelledImages, transform: Callable[[Image.Image], Tensor], *, channels: int, **more: Any
    ) -> None:
        if channels not in _MODES:
            raise InputError(f"expected 1 or 3 channels, but came {channels}")
        super().__init__(images, _Transformed(transform, _MODES[channels]), _collate, least_part=2, **more)


class _Transformed:
    """Loads an image and transforms it; its label beside it. A class, so that workers of any start can have it."""

    def __init__(self, transform: Callable[[Image.Image], Tensor], mode: str) -> None:
        self._transform = transform
        self._mode = mode

    def __call__(self, images: LabelledImages, number: int) -> tuple[Tensor, int | np.ndarray]:
        image, label = images.load(number)
        return self._transform(image.convert(self._mode)), label


def _collate(samples: list[Sample]) -> Batch:
    read = [sample for sample in samples if sample.content is not None]
    given = [sample.content[1] for sample in read]
    soft = [isinstance(label, np.ndarray) for label in given]
    labels = [int(np.argmax(label)) if isinstance(label, np.ndarray) else label for label in given]
    return Batch(
        images=torch.stack([sample.content[0] for sample in read]) if read else torch.empty(0),
        labels=torch.tensor(labels, dtype=torch.int64),
        indices=torch.tensor([sample.number for sample in read], dtype=torch.int64),
        unreadable=[sample.unreadable for sample in samples if sample.content is None],
        step_images=samples[0].step_images,
        targets=_targets(given) if any(soft) else None,
        soft=torch.tensor(soft) if any(soft) else None,
    )


def _targets(labels: Sequence[int | np.ndarray]) -> Tensor:
    classes = next(len(label) for label in labels if isinstance(label, np.ndarray))
    rows = np.zeros((len(labels), classes), np.float32)
    for row, label in zip(rows, labels, strict=True):
        if isinstance(label, np.ndarray):
            row[:] = label
        else:
            row[label] = 1
    return torch.from_numpy(rows)
