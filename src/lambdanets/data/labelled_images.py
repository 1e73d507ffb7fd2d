"""Labelled images behind one small interface: files, arrays in memory, and selections of either."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from PIL import Image

from lambdanets.data.images import read_file, read_image


class LabelledImages(Protocol):
    """A sequence of images with a class number each; only `load` decodes an image."""

    @property
    def labels(self) -> Sequence[int] | np.ndarray:
        """The class number of every image, in order."""

    def __len__(self) -> int:
        """How many images there are."""

    def load(self, index: int) -> tuple[Image.Image, int | np.ndarray]:
        """Decode one image (mode "L" or "RGB") and give its class number. Raises UnreadableImage.

        In place of a number a teacher's label may be its distribution over the classes, float32 (classes,).
        """

    def name(self, index: int) -> str:
        """What a person would call the image: its path, or a set and a number ("digits/17")."""


@dataclass(frozen=True)
class ImageFiles:
    """Images in files of their own."""

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


class Numbered:
    """What images without file names of their own share: their count, and names like "digits/17"."""

    labels: Sequence[int]
    source: str

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, index: int) -> str:
        return f"{self.source}/{index}"


@dataclass(frozen=True)
class ImageArray(Numbered):
    """Grey images in one array `pixels` of uint8 (n, height, width), named "`source`/number"."""

    pixels: np.ndarray
    labels: Sequence[int]
    source: str

    def load(self, index: int) -> tuple[Image.Image, int]:
        return Image.fromarray(self.pixels[index]), self.labels[index]


@dataclass(frozen=True)
class SelectedImages:
    """Some images of a set, by their numbers in it, with class numbers of their own."""

    images: LabelledImages
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


def image_file(images: LabelledImages, index: int) -> tuple[bytes, str]:
    """An image as a file, and its suffix: as it is where the set has files (a method `file`), else a PNG.

    Raises UnreadableImage.
    """
    own = getattr(images, "file", None)
    if own is not None:
        return own(index)
    content = io.BytesIO()
    images.load(index)[0].save(content, "PNG")
    return content.getvalue(), ".png"
