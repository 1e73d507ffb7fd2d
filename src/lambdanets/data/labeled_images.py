"""The protocol of labeled images, and sets of images in files, in an array, or selected from another set."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from PIL import Image

from lambdanets.data.images import read_file, read_image


class LabeledImages(Protocol):
    """Images with class indices; only `load` decodes an image."""

    @property
    def labels(self) -> Sequence[int] | np.ndarray:
        """The class index of every image."""

    def __len__(self) -> int:
        """The number of images."""

    def load(self, index: int) -> tuple[Image.Image, int | np.ndarray]:
        """Decode an image (mode "L" or "RGB") and return it with its label. Raises UnreadableImage.

        The label is a class index, or class probabilities, float32 (classes,).
        """

    def name(self, index: int) -> str:
        """The image's name in messages: its path, or the set and the index ("digits/17")."""


@dataclass(frozen=True)
class ImageFiles:
    """Images in files, one per file."""

    paths: Sequence[Path]
    labels: Sequence[int]

    def __len__(self) -> int:
        return len(self.paths)

    def load(self, index: int) -> tuple[Image.Image, int]:
        return read_image(self.paths[index]), self.labels[index]

    def file(self, index: int) -> tuple[bytes, str]:
        return read_file(self.paths[index]), self.paths[index].suffix.lower()

    def name(self, index: int) -> str:
        return str(self.paths[index])


class NamedByIndex:
    """A base class for images without file names. Their names are "`source`/index", such as "digits/17"."""

    labels: Sequence[int]
    source: str

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, index: int) -> str:
        return f"{self.source}/{index}"


@dataclass(frozen=True)
class ImageArray(NamedByIndex):
    """Gray images in one array `pixels`, uint8 (n, height, width)."""

    pixels: np.ndarray
    labels: Sequence[int]
    source: str

    def load(self, index: int) -> tuple[Image.Image, int]:
        return Image.fromarray(self.pixels[index]), self.labels[index]


@dataclass(frozen=True)
class SelectedImages:
    """The images of another set at `indices`, with new labels."""

    images: LabeledImages
    indices: Sequence[int]
    labels: Sequence[int]

    def __len__(self) -> int:
        return len(self.indices)

    def load(self, index: int) -> tuple[Image.Image, int]:
        return self.images.load(self.indices[index])[0], self.labels[index]

    def file(self, index: int) -> tuple[bytes, str]:
        return image_file(self.images, self.indices[index])

    def name(self, index: int) -> str:
        return self.images.name(self.indices[index])


def image_file(images: LabeledImages, index: int) -> tuple[bytes, str]:
    """Return the encoded bytes of an image and the suffix of their format. Raises UnreadableImage.

    They are the original file if the set has a method `file`, otherwise a PNG.
    """
    read_original = getattr(images, "file", None)
    if read_original is not None:
        return read_original(index)
    content = io.BytesIO()
    images.load(index)[0].save(content, "PNG")
    return content.getvalue(), ".png"
