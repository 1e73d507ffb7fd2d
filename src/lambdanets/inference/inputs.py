"""Conversion of input images: files, Pillow images, arrays and tensors."""

import os
import reprlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
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
    """Return an iterator of batches of 8-bit images of mode "L" or "RGB", in order, with EXIF orientation applied.

    images: as in `Predictor.predict`. channel, stretch: as in `read_image`, for images of all types.

    Files are decoded when their batch is requested. Raises InputError immediately for an invalid argument, and
    UnreadableImage during iteration, also for Pillow images of colors with more than 8 bits: pass their paths.
    """
    check("batch_size", batch_size, PositiveInt)
    check("channel", channel, NonNegativeInt | None)
    named_images = _named_images(images)
    return (
        [_decode(image, name, channel, stretch) for image, name in named_images[start : start + batch_size]]
        for start in range(0, len(named_images), batch_size)
    )


def readable_batches(
    paths: Sequence[Path],
    unreadable: list[str],
    batch_size: int,
    *,
    channel: int | None = None,
    stretch: bool = False,
) -> Iterator[list[tuple[Path, Image.Image]]]:
    """Yield batches of (path, image). Unreadable files are skipped, and messages about them added to `unreadable`.

    channel, stretch: as in `read_image`.
    """
    for start in range(0, len(paths), batch_size):
        batch = []
        for path in paths[start : start + batch_size]:
            try:
                batch.append((path, read_image(path, channel=channel, stretch=stretch)))
            except UnreadableImage as error:
                unreadable.append(str(error))
        if batch:
            yield batch


def _named_images(images: ImageInputs) -> Sequence[tuple[ImageInput, str]]:
    """Return the images with names for messages. Raises InputError for invalid ones; files are not opened."""
    if isinstance(images, np.ndarray | Tensor) and images.ndim == 4:
        images = list(images)
    if isinstance(images, _INPUT_TYPES):
        named: list[tuple[ImageInput, str]] = [(images, "images")]
    elif isinstance(images, Iterable) and not isinstance(images, bytes | dict):
        named = [(image, f"images[{index}]") for index, image in enumerate(images)]
    else:
        raise InputError(f"images must be {_EXPECTED}, or a list of them, got {reprlib.repr(images)}")
    for image, name in named:
        _validate(image, name)
    return named


def _validate(image: object, name: str) -> None:
    if isinstance(image, np.ndarray | Tensor):
        is_array = isinstance(image, np.ndarray)
        channels = (image.shape[2:] or (1,)) if is_array else image.shape[:1]
        is_float = isinstance(image, Tensor) and image.is_floating_point()
        is_known_dtype = is_float or str(image.dtype).endswith("uint8")
        if image.ndim not in ((2, 3) if is_array else (3,)) or channels[0] not in (1, 3) or not is_known_dtype:
            shapes = "an array (H, W) or (H, W, 3) of uint8" if is_array else "a tensor (3, H, W) or (1, H, W)"
            raise InputError(f"{name} must be {shapes}, got shape {tuple(image.shape)} of {image.dtype}")
        if is_float and not 0 <= image.min() <= image.max() <= 1:  # true also for NaN
            raise InputError(f"{name} must be in [0, 1], got other values; divide 8-bit values by 255")
    elif not isinstance(image, _INPUT_TYPES):
        raise InputError(f"{name} must be {_EXPECTED}, got {reprlib.repr(image)}")


def _decode(image: ImageInput, name: str, channel: int | None, stretch: bool) -> Image.Image:
    if isinstance(image, str | os.PathLike):
        return read_image(image, channel=channel, stretch=stretch)
    if isinstance(image, Tensor):
        pixels = (image.float() * 255).round() if image.is_floating_point() else image
        image = pixels.byte().permute(1, 2, 0).cpu().numpy()
    try:
        if isinstance(image, np.ndarray):
            image = Image.fromarray(np.ascontiguousarray(image[..., 0] if image.shape[2:] == (1,) else image))
        return ImageOps.exif_transpose(convert_image(image, channel, stretch))
    except Exception as error:  # Pillow decodes files lazily
        raise UnreadableImage(name, one_line(error)) from error
