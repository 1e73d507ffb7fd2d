"""Batches of labeled images."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from lambdanets.data.batches import Batches, NamedImages, Sample
from lambdanets.data.labeled_images import LabeledImages

_MODES = {1: "L", 3: "RGB"}


class Batch(NamedTuple):
    """A batch of b labeled images.

    images: (b, c, h, w) in the dtype of the transform, uint8 in training; (0,) if no image could be read.
    labels: (b,) int64; or class probabilities, (b, classes) float32, if those are the labels of the set.
    indices: (b,) int64, of the images in the set.
    unreadable: "name: reason" of each image that could not be read. These images are not in the batch.
    step_images: number of images in the whole step, over all ranks and micro-batches.
    """

    images: Tensor
    labels: Tensor
    indices: Tensor
    unreadable: list[str]
    step_images: int = 0


class ImageBatches(Batches[Batch]):
    """`Batches` of labeled images.

    transform: converts a Pillow image to a tensor (channels, h, w), which has the same shape for all images.
    channels: 1 or 3, for images of mode "L" or "RGB".
    options: other arguments of `Batches`.
    """

    def __init__(
        self, images: NamedImages, transform: Callable[[Image.Image], Tensor], *, channels: int, **options: Any
    ) -> None:
        load = partial(_load, transform=transform, mode=_MODES[channels])
        super().__init__(images, load, _collate, **options)


def _load(
    images: LabeledImages, index: int, *, transform: Callable[[Image.Image], Tensor], mode: str
) -> tuple[Tensor, int | np.ndarray]:
    image, label = images.load(index)
    return transform(image.convert(mode)), label


def _collate(samples: list[Sample]) -> Batch:
    readable = [sample for sample in samples if sample.content is not None]
    return Batch(
        images=torch.stack([sample.content[0] for sample in readable]) if readable else torch.empty(0),
        labels=torch.from_numpy(np.array([sample.content[1] for sample in readable] or np.empty(0, np.int64))),
        indices=torch.tensor([sample.image_index for sample in readable], dtype=torch.int64),
        unreadable=[sample.unreadable for sample in samples if sample.content is None],
        step_images=samples[0].step_images,
    )
