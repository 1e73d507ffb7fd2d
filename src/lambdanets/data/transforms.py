"""The evaluation transform of a classifier, based on timm's."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

from PIL.Image import Image
from timm.data import create_transform
from torch import Tensor
from torchvision.transforms import Compose

from lambdanets.bounds import Range
from lambdanets.errors import InputError


@dataclass(frozen=True)
class Preprocessing:
    """The preprocessing of images in evaluation: the largest centered square is resized, cropped and normalized.

    image_size: side of the result in pixels.
    channels: 1 for gray, 3 for RGB.
    mean, std: of pixels in [0, 1], one number or one per channel.
    crop_pct: fraction of the square's side that the center crop keeps, as in timm.
    """

    RANGES: ClassVar[dict[str, Range]] = {
        "image_size": Range(8, 10_000),
        "std": Range(above=0),
        "crop_pct": Range(above=0, maximum=1),
    }

    image_size: int
    channels: Literal[1, 3]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop_pct: float
    interpolation: Literal["bilinear", "bicubic"]

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            if len(getattr(self, name)) not in (1, self.channels):
                raise InputError(
                    f"{name} must be one number or one for each of {self.channels} channels, got {getattr(self, name)}"
                )

    @property
    def mode(self) -> str:
        """The Pillow mode for the number of channels: "L" or "RGB"."""
        return "L" if self.channels == 1 else "RGB"

    def transform(self) -> Callable[[Image], Tensor]:
        """Return a function from a Pillow image in `mode` to a tensor (channels, image_size, image_size), float32."""
        crop_and_normalize = create_transform(
            (self.channels, self.image_size, self.image_size),
            is_training=False,
            crop_pct=self.crop_pct,
            interpolation=self.interpolation,
            mean=self.mean,
            std=self.std,
        )
        return Compose([center_square, crop_and_normalize])


def center_square(image: Image) -> Image:
    """Crop the largest centered square. Without it, timm would resize 1 x 60,000 pixels to a huge image."""
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image.crop((left, top, left + side, top + side))
