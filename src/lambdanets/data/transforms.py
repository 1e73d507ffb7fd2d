"""The evaluation transform of a classifier, based on timm's."""

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, PositiveFloat

from lambdanets.errors import InputError
from lambdanets.records import Several, record

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor


@record
class Preprocessing:
    """Preprocessing of images in evaluation: the largest centered square is resized, cropped and normalized."""

    image_size: Annotated[int, Field(ge=8, le=10_000)] = 224
    """Height and width of the input images, in pixels."""
    channels: Literal[1, 3] = 3
    """Input channels: 1 for grayscale, 3 for RGB."""
    mean: Several[float] = (0.485, 0.456, 0.406)
    """Mean for normalizing pixels in [0, 1]: one number, or one per channel."""
    std: Several[PositiveFloat] = (0.229, 0.224, 0.225)
    """Standard deviation for normalizing pixels in [0, 1]: one number, or one per channel."""
    crop_pct: Annotated[float, Field(gt=0, le=1)] = 0.875
    """Center crop in evaluation, as a fraction of the shorter side of the resized image."""
    interpolation: Literal["bilinear", "bicubic"] = "bicubic"
    """Interpolation for resizing images."""

    def __post_init__(self) -> None:
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, self.channels):
                raise InputError(f"{name} must be one number or one for each of {self.channels} channels, got {values}")

    @property
    def to_mode(self) -> "Callable[[Image], Image]":
        """A function from a Pillow image of any mode to one with the number of channels: of mode "L" or "RGB"."""
        return operator.methodcaller("convert", "L" if self.channels == 1 else "RGB")

    def transform(self) -> "Callable[[Image], Tensor]":
        """Return a function from a Pillow image to a tensor (channels, image_size, image_size), float32."""
        from timm.data import create_transform  # here, so that recipes, which have these fields, do not import PyTorch
        from torchvision.transforms import Compose

        crop_and_normalize = create_transform(
            (self.channels, self.image_size, self.image_size),
            is_training=False,
            crop_pct=self.crop_pct,
            interpolation=self.interpolation,
            mean=self.mean,
            std=self.std,
        )
        return Compose([self.to_mode, center_square, crop_and_normalize])


def center_square(image: "Image") -> "Image":
    """Crop the largest centered square. Without it, timm would resize 1 x 60,000 pixels to a huge image."""
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image.crop((left, top, left + side, top + side))
