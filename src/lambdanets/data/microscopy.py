"""Reads images of microscopes: TIFF files with several channels, and intensities with more than 8 bits."""

import contextlib
import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import ExifTags, Image, ImageOps

from lambdanets.data.images import UnreadableImage, read_image
from lambdanets.errors import one_line
from lambdanets.files import open_regular

MAX_BYTES = 2**31  # of the planes that are decoded
PERCENTILES = (0.1, 99.9)
_TIFF_HEADERS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_COLORS = ("RGB", "YCBCR", "SEPARATED", "PALETTE", "CIELAB")  # photometric interpretations with color samples
_ROWS = 1024  # converted at a time, to save memory


def read_microscopy_image(path: Path, channel: int | None = None, stretch: bool = False) -> Image.Image:
    """Read an image with 8 bits per channel: mode "L" if it has one channel or `channel` is given, else "RGB".

    channel: index of the channel, or of the plane of a stack, in the order of the file. Color images need none; other
        files with several channels or planes need one.
    stretch: map the 0.1 and the 99.9 percentile of intensities with more than 8 bits to 0 and 255. Otherwise integers
        must be in [0, 65535] and floats in [0, 1], and all of the range is mapped to 8 bits, as in `read_image`.

    The EXIF or TIFF orientation is applied. Raises UnreadableImage.
    """
    try:
        with open_regular(path) as file:
            header = file.read(4)
            file.seek(0)
            planes = _read_tiff(file, channel) if header in _TIFF_HEADERS else None
        if planes is None:
            planes = _read_with_pillow(path, channel, stretch)
        values, orientation = planes
        return _rotate(_to_8_bits(values, stretch), orientation)
    except UnreadableImage:
        raise
    except Exception as error:  # tifffile raises exceptions of many types for damaged files
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else one_line(error)
        raise UnreadableImage(str(path), reason) from error


def _read_tiff(file: BinaryIO, channel: int | None) -> tuple[np.ndarray, int] | None:
    """Return planes (n, H, W), one or three, and the orientation; None for 8-bit images, which Pillow reads."""
    from tifffile import TiffFile

    with _quiet("tifffile"), TiffFile(file) as tiff:
        series = tiff.series[0]
        page, shape, axes = series.keyframe, series.shape, series.axes
        if series.dtype is None or "Y" not in axes or "X" not in axes or min(shape) < 1:
            raise ValueError(f"its axes are {axes} of sizes {shape}, not those of an image")
        samples = shape[axes.index("S")] if "S" in axes else 1
        planes = math.prod(side for side, axis in zip(shape, axes, strict=True) if axis not in "YX")
        is_color = page.photometric.name in _COLORS and planes == samples
        if series.dtype in (np.uint8, bool) and (planes == 1 or (is_color and samples <= 4)):
            return None
        if channel is None and not (planes == 1 or (is_color and samples in (3, 4))):
            raise ValueError(f"it has {planes} channels or planes; choose one with --channel")
        _check_channel(channel, planes)
        one_per_page = len(series.pages) == planes and page.shape == tuple(shape[axes.index(a)] for a in "YX")
        needed = series.nbytes // planes if one_per_page else series.nbytes
        if needed > MAX_BYTES:
            raise ValueError(f"it has {needed / 2**30:.1f} GiB, more than {MAX_BYTES / 2**30:.0f} GiB")
        orientation = int(page.tags.valueof(ExifTags.Base.Orientation, 1))
        if one_per_page:
            return series.pages[channel or 0].asarray()[None], orientation
        order = [i for i, axis in enumerate(axes) if axis not in "YX"] + [axes.index("Y"), axes.index("X")]
        values = series.asarray().transpose(order)
        values = values.reshape(planes, *values.shape[-2:])
        return values[:3] if channel is None else values[channel : channel + 1], orientation


def _read_with_pillow(path: Path, channel: int | None, stretch: bool) -> tuple[np.ndarray, int]:
    """Return planes (n, H, W), one or three, and the orientation 1, as it is already applied."""
    values = _read_high_depth(path) if stretch else None
    if values is None:
        values = np.asarray(read_image(path))
    planes = values[None] if values.ndim == 2 else np.moveaxis(values, 2, 0)
    _check_channel(channel, len(planes))
    return planes if channel is None else planes[channel : channel + 1], 1


def _read_high_depth(path: Path) -> np.ndarray | None:
    """Return the values of a gray image with more than 8 bits; None for other images, and for damaged files."""
    with contextlib.suppress(Exception), open_regular(path) as file, Image.open(file) as image:
        if image.mode in ("I", "F") or image.mode.startswith("I;16"):
            ImageOps.exif_transpose(image, in_place=True)
            return np.asarray(image)
    return None


def _check_channel(channel: int | None, count: int) -> None:
    if channel is not None and channel >= count:
        raise ValueError(f"channel must be below {count}, its number of channels or planes, got {channel}")


def _to_8_bits(planes: np.ndarray, stretch: bool) -> Image.Image:
    """Convert planes (n, H, W) to an image of mode "L" for one plane, or "RGB" for three, with a common scale."""
    if planes.dtype == bool:
        planes = planes.astype(np.uint8) * 255
    if planes.dtype != np.uint8:
        low, high = _limits(planes, stretch)
        scale = 255 / max(high - low, 1e-30)
        converted = np.empty(planes.shape, np.uint8)
        for first in range(0, planes.shape[1], _ROWS):
            rows = np.s_[:, first : first + _ROWS]
            converted[rows] = np.rint(((planes[rows].astype(np.float64) - low) * scale).clip(0, 255))
        planes = converted
    pixels = planes[0] if len(planes) == 1 else np.moveaxis(planes, 0, 2)
    return Image.fromarray(np.ascontiguousarray(pixels))


def _limits(planes: np.ndarray, stretch: bool) -> tuple[float, float]:
    """Return the intensities that become 0 and 255. Raises ValueError for values that have no such limits."""
    if planes.dtype.kind not in "uif":
        raise ValueError(f"its intensities must be integers or floats, got {planes.dtype}")
    low, high = planes.min().item(), planes.max().item()  # NaN if any value is NaN
    if not math.isfinite(high - low):
        raise ValueError("its intensities must be finite, got NaN or infinity")
    if stretch:
        first, last = np.percentile(planes, PERCENTILES).tolist()
        return first, last
    name, limit = ("floats", 1) if planes.dtype.kind == "f" else ("integers", 65535)
    if not 0 <= low <= high <= limit:
        raise ValueError(f"its {name} must be in 0..{limit}, got {low:g} to {high:g}; use --stretch on")
    return 0.0, float(limit)


def _rotate(image: Image.Image, orientation: int) -> Image.Image:
    """Apply an orientation of EXIF, which TIFF shares."""
    if orientation == 1:
        return image
    image.getexif()[ExifTags.Base.Orientation] = orientation
    return ImageOps.exif_transpose(image)


@contextlib.contextmanager
def _quiet(logger: str) -> Iterator[None]:
    """Silence a logger within the block: damaged metadata are no errors."""
    log = logging.getLogger(logger)
    previous, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = previous
