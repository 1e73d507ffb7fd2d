"""Reads microscopy images: TIFF files with several channels, and intensities with more than 8 bits."""

import contextlib
import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import ExifTags, Image, ImageOps

from lambdanets.data.images import UnreadableImage, read_image, to_8_bits
from lambdanets.errors import one_line
from lambdanets.files import open_regular

MAX_BYTES = 2**31  # of the planes that are decoded
_TIFF_HEADERS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_COLOR_PHOTOMETRICS = ("RGB", "YCBCR", "SEPARATED", "PALETTE", "CIELAB")  # TIFF's PhotometricInterpretation


def read_microscopy_image(path: Path, channel: int | None = None, stretch: bool = False) -> Image.Image:
    """Read an image with 8 bits per channel: mode "L" if it has one channel or `channel` is given, else "RGB".

    channel: index of the channel, or of the plane of a stack, in the order of the file. Color images need none; other
        files with several channels or planes need one.
    stretch: as in `to_8_bits`.

    The EXIF or TIFF orientation is applied. Raises UnreadableImage.
    """
    try:
        with open_regular(path) as file:
            header = file.read(4)
            file.seek(0)
            content = _read_tiff(file, channel) if header in _TIFF_HEADERS else None
        if content is None:
            content = _read_with_pillow(path, channel, stretch)
        planes, orientation = content
        return _rotate(_to_image(to_8_bits(planes, stretch)), orientation)
    except UnreadableImage:
        raise
    except Exception as error:  # tifffile raises exceptions of many types for damaged files
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else one_line(error)
        raise UnreadableImage(str(path), reason) from error


def _read_tiff(file: BinaryIO, channel: int | None) -> tuple[np.ndarray, int] | None:
    """Return planes (n, H, W), one or three, and the orientation; None for 8-bit images, which Pillow reads."""
    from tifffile import TiffFile

    with _disabled_logger("tifffile"), TiffFile(file) as tiff:
        series = tiff.series[0]
        page, shape, axes = series.keyframe, series.shape, series.axes
        if series.dtype is None or "Y" not in axes or "X" not in axes or min(shape) < 1:
            raise ValueError(f"its axes are {axes} of sizes {shape}, not those of an image")
        samples_per_pixel = shape[axes.index("S")] if "S" in axes else 1
        num_planes = math.prod(side for side, axis in zip(shape, axes, strict=True) if axis not in "YX")
        is_color = page.photometric.name in _COLOR_PHOTOMETRICS and num_planes == samples_per_pixel
        if series.dtype in (np.uint8, bool) and (num_planes == 1 or (is_color and samples_per_pixel <= 4)):
            return None
        if channel is None and not (num_planes == 1 or (is_color and samples_per_pixel in (3, 4))):
            raise ValueError(f"it has {num_planes} channels or planes; choose one with --channel")
        _check_channel(channel, num_planes)
        one_per_page = len(series.pages) == num_planes and page.shape == tuple(shape[axes.index(a)] for a in "YX")
        num_bytes = series.nbytes // num_planes if one_per_page else series.nbytes
        if num_bytes > MAX_BYTES:
            raise ValueError(f"it has {num_bytes / 2**30:.1f} GiB, more than {MAX_BYTES / 2**30:.0f} GiB")
        orientation = int(page.tags.valueof(ExifTags.Base.Orientation, 1))
        if one_per_page:
            return series.pages[channel or 0].asarray()[None], orientation
        order = [i for i, axis in enumerate(axes) if axis not in "YX"] + [axes.index("Y"), axes.index("X")]
        values = series.asarray().transpose(order)
        values = values.reshape(num_planes, *values.shape[-2:])
        return values[:3] if channel is None else values[channel : channel + 1], orientation


def _read_with_pillow(path: Path, channel: int | None, stretch: bool) -> tuple[np.ndarray, int]:
    """Return planes (n, H, W), one or three, and the orientation 1, because `read_image` has applied it."""
    values = np.asarray(read_image(path, stretch=stretch))
    planes = values[None] if values.ndim == 2 else np.moveaxis(values, 2, 0)
    _check_channel(channel, len(planes))
    return planes if channel is None else planes[channel : channel + 1], 1


def _check_channel(channel: int | None, num_planes: int) -> None:
    if channel is not None and channel >= num_planes:
        raise ValueError(f"channel must be below {num_planes}, its number of channels or planes, got {channel}")


def _to_image(planes: np.ndarray) -> Image.Image:
    pixels = planes[0] if len(planes) == 1 else np.moveaxis(planes, 0, 2)
    return Image.fromarray(np.ascontiguousarray(pixels))


def _rotate(image: Image.Image, orientation: int) -> Image.Image:
    """Apply an EXIF orientation. TIFF's Orientation tag has the same values."""
    if orientation == 1:
        return image
    image.getexif()[ExifTags.Base.Orientation] = orientation
    return ImageOps.exif_transpose(image)


@contextlib.contextmanager
def _disabled_logger(logger: str) -> Iterator[None]:
    """Disable a logger within the block.

    tifffile logs errors for damaged metadata, although it can still read the pixels.
    """
    log = logging.getLogger(logger)
    previous, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = previous
