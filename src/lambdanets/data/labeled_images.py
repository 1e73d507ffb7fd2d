"""Labeled images in files, in an array, or selected from another set; and their batches."""

import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from lambdanets.data.batches import Batches, Sample
from lambdanets.data.images import read_file, read_image
from lambdanets.data.transforms import Preprocessing

_MODES = {1: "L", 3: "RGB"}


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

    def file(self, index: int) -> tuple[bytes, str]:
        """Return the encoded bytes of an image and the suffix of their format. Raises UnreadableImage."""

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


class ImagesWithoutFiles(ABC):
    """A base class of images without file names. Their names are "`source`/index", such as "digits/17"."""

    labels: Sequence[int]
    source: str

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def load(self, index: int) -> tuple[Image.Image, int]: ...

    def file(self, index: int) -> tuple[bytes, str]:
        content = io.BytesIO()
        self.load(index)[0].save(content, "PNG")
        return content.getvalue(), ".png"

    def name(self, index: int) -> str:
        return f"{self.source}/{index}"


@dataclass(frozen=True)
class ImageArray(ImagesWithoutFiles):
    """Gray images in one array `pixels`, uint8 (n, height, width)."""

    pixels: np.ndarray
    labels: Sequence[int]
    source: str

    def load(self, index: int) -> tuple[Image.Image, int]:
        return Image.fromarray(self.pixels[index]), self.labels[index]


@dataclass(frozen=True)
class SelectedImages:
    """The images of another set at `indices`, with new labels."""

    images: Any
    indices: Sequence[int]
    labels: Sequence[int]

    def __len__(self) -> int:
        return len(self.indices)

    def load(self, index: int) -> tuple[Image.Image, int]:
        return self.images.load(self.indices[index])[0], self.labels[index]

    def file(self, index: int) -> tuple[bytes, str]:
        return self.images.file(self.indices[index])

    def name(self, index: int) -> str:
        return self.images.name(self.indices[index])


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
        self, images: Any, transform: Callable[[Image.Image], Tensor], *, channels: int, **options: Any
    ) -> None:
        load = partial(_load, transform=transform, mode=_MODES[channels])
        super().__init__(images, load, _collate, **options)


def _load(
    images: Any, index: int, *, transform: Callable[[Image.Image], Tensor], mode: str
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


def normalize(images: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Normalize images (b, c, h, w), uint8, to float32 on their device, as `Preprocessing.transform` does."""
    mean, std = (_per_channel(values, images.device) for values in (preprocessing.mean, preprocessing.std))
    return images.float().div_(255).sub_(mean).div_(std)


@lru_cache(maxsize=8)
def _per_channel(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Return values for images (b, c, h, w). A new tensor in each step would wait for the GPU."""
    return torch.tensor(values, device=device).view(-1, 1, 1)
