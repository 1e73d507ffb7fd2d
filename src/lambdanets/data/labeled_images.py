"""Labeled images in files, in memory, of other packages, or selected from another set; and their batches."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from lambdanets.data.batches import Batches
from lambdanets.data.images import UnreadableImage, describe_error, read_image
from lambdanets.data.pixels import convert_image
from lambdanets.data.tars import TarMember
from lambdanets.errors import one_line
from lambdanets.files import open_regular


class LabeledImages:
    """A set of images with class indices. A subclass has `labels`, and `file`, or `load` if the images are in no files.

    labels: the class index of every image. classes: the class names. source: the set, for messages.
    """

    labels: Sequence[int] | np.ndarray
    classes: tuple[str, ...]
    source: str

    def __len__(self) -> int:
        return len(self.labels)

    def load(self, index: int) -> tuple[Image.Image, int]:
        """Decode an image (mode "L" or "RGB") and return it with its label. Raises UnreadableImage."""
        label = self.label(index)
        return read_image(io.BytesIO(self.file(index)), self.name(index)), label

    def label(self, index: int) -> int:
        """Return the label of an image. Raises UnreadableImage."""
        return int(self.labels[index])

    def file(self, index: int) -> bytes:
        """Return the encoded image; by default, of images that are in no files, as PNG. Raises UnreadableImage."""
        content = io.BytesIO()
        self.load(index)[0].save(content, "PNG")
        return content.getvalue()

    def name(self, index: int) -> str:
        """The image's name in messages: its path, or the set and the index ("digits/17")."""
        return f"{self.source}/{index}"


@dataclass(frozen=True)
class ImageFiles(LabeledImages):
    """Images in files, which may be in a tar."""

    files: Sequence[Path | TarMember]
    labels: Sequence[int]
    classes: tuple[str, ...] = ()
    source: str = ""

    def file(self, index: int) -> bytes:
        file = self.files[index]
        path, start, length = (file.tar, file.start, file.length) if isinstance(file, TarMember) else (file, 0, -1)
        try:
            with open_regular(path) as stream:  # for each image, since forked workers would share its position
                stream.seek(start)
                return stream.read(length)
        except OSError as error:
            raise UnreadableImage(str(path), describe_error(error)) from error

    def name(self, index: int) -> str:
        return str(self.files[index])


@dataclass(frozen=True)
class IndexedImages(LabeledImages):
    """The images of a list, a torchvision dataset or a timm reader, whose items are (image or binary file, label)."""

    items: Any
    labels: Sequence[int]
    classes: tuple[str, ...]
    source: str

    def load(self, index: int) -> tuple[Image.Image, int]:
        name = self.name(index)
        try:
            image = self.items[index][0]
            if isinstance(image, Image.Image):
                return convert_image(image), self.labels[index]
        except Exception as error:  # datasets raise exceptions of any type for damaged files
            raise UnreadableImage(name, one_line(error)) from error
        with image:
            return read_image(image, name), self.labels[index]


@dataclass(frozen=True)
class SelectedImages(LabeledImages):
    """The images of another set at `indices`, with new labels."""

    images: Any
    indices: Sequence[int]
    labels: Sequence[int]
    classes: tuple[str, ...] = ()
    source: str = ""

    def load(self, index: int) -> tuple[Image.Image, int]:
        return self.images.load(self.indices[index])[0], self.labels[index]

    def file(self, index: int) -> bytes:
        return self.images.file(self.indices[index])

    def name(self, index: int) -> str:
        return self.images.name(self.indices[index])


class ImageBatches(Batches):
    """`Batches` of labeled images.

    transform: converts a Pillow image to a tensor (channels, h, w), which has the same shape for all images.
    options: other arguments of `Batches`.

    A batch has images (b, c, h, w) in the dtype of the transform, and targets (b,) int64 or, if the labels of the set
    are class probabilities, (b, classes) float32. Both are (0,) if no image could be read.
    """

    def __init__(self, images: Any, transform: Callable[[Image.Image], Tensor], **options: Any) -> None:
        super().__init__(images, partial(_load, transform=transform), _stack, **options)


def _load(images: Any, index: int, *, transform: Callable[[Image.Image], Tensor]) -> tuple[Tensor, int | np.ndarray]:
    image, label = images.load(index)
    return transform(image), label


def _stack(images: list[Tensor], labels: list[int | np.ndarray]) -> tuple[Tensor, Tensor]:
    stacked = torch.stack(images) if images else torch.empty(0)
    return stacked, torch.from_numpy(np.array(labels or np.empty(0, np.int64)))
