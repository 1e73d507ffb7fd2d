"""Labeled images in files, in tars, in memory, or of other packages; and their batches."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from lambdanets.data.batches import Batches
from lambdanets.data.image_search import TarMember
from lambdanets.data.images import read_image


class DatasetItem(NamedTuple):
    """An image of a list, a torchvision dataset or a timm reader, whose items are (image or binary file, label)."""

    items: Any
    number: int
    source: str

    def __str__(self) -> str:
        return f"{self.source}/{self.number}"

    def open(self) -> Any:
        """Return the Pillow image or the open file. Datasets raise exceptions of any type for damaged files."""
        return self.items[self.number][0]


ImageFile = Path | TarMember | DatasetItem


class LabeledImages(ABC):
    """A set of images with class indices.

    labels: the class index of every image. classes: the class names. source: the set, for messages.
    """

    labels: Sequence[int] | np.ndarray
    classes: tuple[str, ...]
    source: str

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def file(self, index: int) -> ImageFile:
        """Return where an image is. Raises UnreadableImage."""

    def load(self, index: int) -> tuple[Image.Image, int]:
        """Decode an image (mode "L" or "RGB") and return it with its label. Raises UnreadableImage."""
        label = self.label(index)
        return read_image(self.file(index)), label

    def label(self, index: int) -> int:
        """Return the label of an image. Raises UnreadableImage."""
        return int(self.labels[index])

    def name(self, index: int) -> str:
        """The image's name in messages: its path, or the set and the index ("digits/17")."""
        return str(self.file(index))

    def select(self, indices: Sequence[int]) -> "ImageFiles":
        """Return the images at `indices`, in this order. Raises UnreadableImage."""
        files, labels = [self.file(index) for index in indices], [self.label(index) for index in indices]
        return ImageFiles(files, labels, self.classes, self.source)


@dataclass(frozen=True)
class ImageFiles(LabeledImages):
    """Images in files, in tars or of a dataset."""

    files: Sequence[ImageFile]
    labels: Sequence[int]
    classes: tuple[str, ...] = ()
    source: str = ""

    def file(self, index: int) -> ImageFile:
        return self.files[index]


def dataset_images(items: Any, labels: Sequence[int], classes: tuple[str, ...], source: str) -> ImageFiles:
    """Return the images of a list or a dataset, as `DatasetItem`s."""
    return ImageFiles([DatasetItem(items, index, source) for index in range(len(labels))], labels, classes, source)


def image_batches(images: Any, transform: Callable[[Image.Image], Tensor], **options: Any) -> Batches:
    """Return `Batches` of labeled images.

    transform: converts a Pillow image to a tensor (channels, h, w), which has the same shape for all images.
    options: other arguments of `Batches`.

    A batch has images (b, c, h, w) in the dtype of the transform, and targets (b,) int64 or, if the labels of the set
    are class probabilities, (b, classes) float32. Both are (0,) if no image could be read.
    """
    return Batches(images, partial(_apply, transform), _stack, **options)


def _apply(transform: Callable[[Image.Image], Tensor], image: Image.Image, label: Any) -> tuple[Tensor, Any]:
    return transform(image), label


def _stack(images: list[Tensor], labels: list[int | np.ndarray]) -> tuple[Tensor, Tensor]:
    stacked = torch.stack(images) if images else torch.empty(0)
    return stacked, torch.from_numpy(np.array(labels or np.empty(0, np.int64)))
