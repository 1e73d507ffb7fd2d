"""The part of an image that a network sees, to convert pixels of the image to positions of maps."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lambdanets.data.transforms import Preprocessing
from lambdanets.errors import InputError
from lambdanets.models.mask_rcnn import MaskRCNN
from lambdanets.models.unet import UNet


@dataclass(frozen=True)
class View:
    """The box of an image that the input of a network covers.

    image_size: sides of the image in pixels, (height, width). start, size: of the box, in pixels of the image; for a
        detector it is larger than the image, because its input is padded.
    """

    image_size: tuple[int, ...]
    start: tuple[float, ...]
    size: tuple[float, ...]

    @classmethod
    def whole(cls, sides: tuple[int, ...]) -> "View":
        """The view of a network whose input is the image itself."""
        return cls(sides, (0.0,) * len(sides), tuple(map(float, sides)))

    def position(self, at: tuple[int, ...] | None, sides: tuple[int, ...]) -> tuple[int, ...]:
        """Return the position that contains the pixel `at` in a map with these sides; the center if `at` is None.

        Raises InputError if the pixel is not in the image, or if the network does not see it.
        """
        at = tuple(side // 2 for side in self.image_size) if at is None else tuple(at)
        if not is_within(at, self.image_size):
            raise InputError(f"at must be a pixel of the image of size {self.image_size}, got {at}")
        if sides == self.image_size and not any(self.start):  # the output of a U-Net is that of the image, not padded
            return at
        fractions = [(x + 0.5 - start) / size for x, start, size in zip(at, self.start, self.size, strict=True)]
        if not all(0 <= fraction < 1 for fraction in fractions):
            ranges = " and ".join(
                f"{axis} {math.ceil(start - 0.5)} to {math.ceil(start + size - 0.5) - 1}"
                for axis, start, size in zip(("rows", "columns"), self.start, self.size, strict=False)
            )
            raise InputError(f"at must be in the center crop that the model sees, {ranges}, got {at}")
        return tuple(int(fraction * side) for fraction, side in zip(fractions, sides, strict=True))


def is_within(at: tuple[int, ...], sides: tuple[int, ...]) -> bool:
    return len(at) == len(sides) and all(0 <= x < side for x, side in zip(at, sides, strict=True))


def view_of_classifier(preprocessing: Preprocessing, size: tuple[int, int]) -> View:
    """Return the view of a classifier, the center crop of the largest square. size: (width, height) of the image."""
    width, height = size
    square = min(size)
    resized = math.floor(preprocessing.image_size / preprocessing.crop_pct)
    side = square * preprocessing.image_size / resized
    return View((height, width), ((height - side) / 2, (width - side) / 2), (side, side))


def view_of_network(network: nn.Module, sides: tuple[int, ...]) -> View:
    """Return the view of a network whose input has these sides. U-Nets pad it at the bottom and right."""
    stride = network.stride if isinstance(network, UNet) else 1
    return View(sides, (0.0,) * len(sides), tuple(-(-side // stride) * float(stride) for side in sides))


@torch.no_grad()
def view_of_detector(model: MaskRCNN, image: Tensor) -> View:
    """Return the view of a detector, which resizes and pads the image (3, H, W)."""
    batch, _ = model.transform([image])
    sides = tuple(image.shape[1:])
    resized, padded = batch.image_sizes[0], batch.tensors.shape[2:]
    return View(sides, (0.0, 0.0), tuple(side * p / r for side, p, r in zip(sides, padded, resized, strict=True)))
