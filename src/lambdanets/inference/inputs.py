"""Conversion of input images: files, Pillow images, arrays and tensors."""

import os
import reprlib
from collections.abc import Iterable, Iterator

import numpy as np
import torch
from PIL import Image, ImageOps
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from lambdanets.data.images import UnreadableImage, read_image
from lambdanets.data.pixels import convert_image
from lambdanets.errors import InputError, one_line
from lambdanets.records import check

ImageInput = str | os.PathLike[str] | Image.Image | np.ndarray | Tensor
ImageInputs = ImageInput | Iterable[ImageInput]
_INPUT_TYPES = (str, os.PathLike, Image.Image, np.ndarray, Tensor)
_EXPECTED = "a path, a Pillow image, a NumPy array or a tensor"


def image_batches(
    images: ImageInputs, batch_size: int, *, channel: int | None = None, stretch: bool = False
) -> Iterator[list[Image.Image]]:
    """Yield batches of 8-bit images of mode "L" or "RGB", in order, with EXIF orientation applied.

    images: as in `Predictor.predict`. channel, stretch: as in `read_image`, for images of all types.

    Images are decoded when their batch is requested. Raises InputError for an invalid argument, and UnreadableImage,
    also for Pillow images of colors with more than 8 bits: pass their paths.
    """
    check("batch_size", batch_size, PositiveInt)
    check("channel", channel, NonNegativeInt | None)
    if isinstance(images, np.ndarray | Tensor) and images.ndim == 4:
        images = list(images)
    if isinstance(images, _INPUT_TYPES):
        named: list[tuple[ImageInput, str]] = [(images, "images")]
    elif isinstance(images, Iterable) and not isinstance(images, bytes | dict):
        named = [(image, f"images[{index}]") for index, image in enumerate(images)]
    else:
        raise InputError(f"images must be {_EXPECTED}, or a list of them, got {reprlib.repr(images)}")
    for start in range(0, len(named), batch_size):
        yield [_decode(image, name, channel, stretch) for image, name in named[start : start + batch_size]]


def _decode(image: ImageInput, name: str, channel: int | None, stretch: bool) -> Image.Image:
    if isinstance(image, str | os.PathLike):
        return read_image(image, channel=channel, stretch=stretch)
    if isinstance(image, Tensor):
        image = _tensor_to_array(image, name)
    if isinstance(image, np.ndarray):
        if image.ndim not in (2, 3) or image.shape[2:] not in ((), (1,), (3,)) or image.dtype != np.uint8:
            shape = f"{image.shape} of {image.dtype}"
            raise InputError(f"{name} must be an array (H, W) or (H, W, 3) of uint8, got shape {shape}")
        image = Image.fromarray(np.ascontiguousarray(image[..., 0] if image.shape[2:] == (1,) else image))
    if not isinstance(image, Image.Image):
        raise InputError(f"{name} must be {_EXPECTED}, got {reprlib.repr(image)}")
    try:
        return ImageOps.exif_transpose(convert_image(image, channel, stretch))
    except Exception as error:  # Pillow decodes files lazily
        raise UnreadableImage(name, one_line(error)) from error


def _tensor_to_array(image: Tensor, name: str) -> np.ndarray:
    if image.ndim != 3 or len(image) not in (1, 3) or not (image.is_floating_point() or image.dtype == torch.uint8):
        shape = f"{tuple(image.shape)} of {image.dtype}"
        raise InputError(f"{name} must be a tensor (3, H, W) or (1, H, W), got shape {shape}")
    if image.is_floating_point():
        if not 0 <= image.min() <= image.max() <= 1:  # true also for NaN
            raise InputError(f"{name} must be in [0, 1], got other values; divide 8-bit values by 255")
        image = (image.float() * 255).round()
    return image.byte().permute(1, 2, 0).cpu().numpy()
