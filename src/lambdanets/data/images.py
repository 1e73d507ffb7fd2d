"""Reads images in any format as 8-bit gray or RGB."""

import contextlib
import math
import os
import re
import warnings
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from lambdanets.errors import UnreadableError, one_line
from lambdanets.files import open_regular

# Pillow's formats of pixels, the most frequent first. Its others are vector graphics (EPS starts Ghostscript), videos,
# or need a plug-in. JPEG includes MPO.
FORMATS = (
    "PNG", "JPEG", "GIF", "BMP", "PPM", "TIFF", "WEBP", "AVIF", "DCX", "DDS", "DIB", "ICNS", "ICO", "JPEG2000", "MSP",
    "PCX", "PSD", "QOI", "SGI", "SUN", "TGA", "XBM", "XPM",
)  # fmt: skip

_TRANSPOSED = (5, 6, 7, 8)  # EXIF orientations that swap width and height
# Large images are either read or raise an error, and damaged metadata do not change pixels.
_IGNORED_WARNINGS = [
    ("ignore", None, Image.DecompressionBombWarning, None, 0),
    ("ignore", None, UserWarning, re.compile(r"PIL\."), 0),
]
_GRAY_MODES = {"1", "L", "LA", "La"}
PERCENTILES = (0.1, 99.9)  # intensities that `stretch` maps to 0 and 255
_CHUNK_ROWS = 1024  # rows that are converted to 8 bits at a time, to save memory


class UnreadableImage(UnreadableError):  # noqa: N818 - it describes the image
    """An image cannot be read. path: its file, or the name of an image in memory."""

    message = "cannot read the image {path}: {reason}"


def read_image(
    source: str | os.PathLike[str] | BinaryIO,
    name: str | None = None,
    *,
    known_size: tuple[int, int] | None = None,
    max_pixels: int | None = None,
    formats: tuple[str, ...] | None = None,
    stretch: bool = False,
) -> Image.Image:
    """Read the first frame of an image with 8 bits per channel: mode "L" if the source is gray, else "RGB".

    source: a path or a binary file.
    name: name of the image in error messages, by default its path.
    known_size: (width, height) in the annotations. If the stored pixels have this size, but the rotated ones do not,
        the EXIF orientation is ignored. Otherwise it is applied.
    max_pixels: limit that is checked before the pixels are decoded. formats: names of Pillow's formats to accept.
    stretch: as in `to_8_bits`.

    `to_gray_or_rgb` converts images with transparency or with more than 8 bits. The pixels are loaded, so the file may
    be closed. Raises UnreadableImage for a file that is missing, damaged, empty, not a regular file (named pipes are
    not opened) or not an image, and above Pillow's limit against decompression bombs: 178,956,970 pixels, which need
    1.4 GB of memory in RGB, and 3.5 GB with transparency.
    """
    if name is None:
        name = os.fspath(source) if isinstance(source, str | os.PathLike) else str(getattr(source, "name", "memory"))
    # change the filters only once, because after each change Python shows earlier warnings again
    if any(warning_filter not in warnings.filters for warning_filter in _IGNORED_WARNINGS):
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
    try:
        with _open(source) as file, Image.open(file, formats=formats) as image:
            if image.width == 0 or image.height == 0:
                raise UnreadableImage(name, f"it is {image.width} x {image.height} pixels")
            if max_pixels is not None and image.width * image.height > max_pixels:
                raise UnreadableImage(
                    name, f"it has {image.width} x {image.height} pixels, more than {max_pixels:,}; reduce its size"
                )
            image.load()
            transposed = image.getexif().get(ExifTags.Base.Orientation) in _TRANSPOSED
            if not (transposed and image.size == known_size != image.size[::-1]):
                ImageOps.exif_transpose(image, in_place=True)
            return to_gray_or_rgb(image, stretch)
    except UnreadableImage:
        raise
    except Exception as error:  # Pillow's decoders raise exceptions of many types for damaged files
        raise UnreadableImage(name, _describe_error(error, source)) from error


def _open(source: str | os.PathLike[str] | BinaryIO) -> contextlib.AbstractContextManager[BinaryIO]:
    return open_regular(source) if isinstance(source, str | os.PathLike) else contextlib.nullcontext(source)


def read_file(path: Path, start: int = 0, length: int = -1) -> bytes:
    """Read a file, or `length` bytes of it from the offset `start`. Raises UnreadableImage."""
    try:
        with open_regular(path) as file:
            file.seek(start)
            return file.read(length)
    except OSError as error:
        raise UnreadableImage(str(path), _describe_error(error, path)) from error


def to_gray_or_rgb(image: Image.Image, stretch: bool = False) -> Image.Image:
    """Convert a Pillow image of any mode to "L" (if it is gray) or "RGB", with transparency composited on white.

    Intensities with more than 8 bits are converted by `to_8_bits`, which may raise ValueError.
    """
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return Image.fromarray(to_8_bits(np.asarray(image)[None], stretch)[0])
    if image.has_transparency_data:
        gray = image.mode in _GRAY_MODES
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, rgba).convert("L" if gray else "RGB")
    converted = image.convert("L" if image.mode in _GRAY_MODES else "RGB")
    return image.copy() if converted is image else converted


def to_8_bits(planes: np.ndarray, stretch: bool = False) -> np.ndarray:
    """Convert intensities (n, H, W) of any number of bits to uint8, with a common scale.

    stretch: map the 0.1 and the 99.9 percentile to 0 and 255. Otherwise integers must be in [0, 65535] and floats in
        [0, 1], as in torchvision and scikit-image, and all of the range is mapped.

    Raises ValueError for other values, and for NaN and infinity.
    """
    if planes.dtype == np.uint8:
        return planes
    if planes.dtype == bool:
        return planes.astype(np.uint8) * 255
    low, high = _intensity_limits(planes, stretch)
    scale = 255 / max(high - low, 1e-30)
    converted = np.empty(planes.shape, np.uint8)
    for first in range(0, planes.shape[1], _CHUNK_ROWS):
        rows = np.s_[:, first : first + _CHUNK_ROWS]
        converted[rows] = np.rint(((planes[rows].astype(np.float64) - low) * scale).clip(0, 255))
    return converted


def _intensity_limits(planes: np.ndarray, stretch: bool) -> tuple[float, float]:
    """Return the intensities that become 0 and 255."""
    if planes.dtype.kind not in "uif":
        raise ValueError(f"its intensities must be integers or floats, got {planes.dtype}")
    low, high = planes.min().item(), planes.max().item()  # NaN if any value is NaN
    if stretch:
        if not math.isfinite(high - low):
            raise ValueError("its intensities must be finite, got NaN or infinity")
        low, high = np.percentile(planes, PERCENTILES).tolist()
        return low, high
    name, limit = ("floats", 1) if planes.dtype.kind == "f" else ("integers", 65535)
    if not 0 <= low <= high <= limit:
        raise ValueError(
            f"its {name} must be in 0..{limit}, got {low:g} to {high:g}; convert the images of the set to 8 or 16 bits"
        )
    return 0.0, float(limit)


def _describe_error(error: Exception, source: str | os.PathLike[str] | BinaryIO) -> str:
    if isinstance(error, UnidentifiedImageError):
        with _open(source) as file:
            empty = file.seekable() and file.seek(0, os.SEEK_END) == 0
        return "the file is empty" if empty else "it is not an image of a known format"
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if isinstance(error, OSError) and error.strerror:
        return f"it cannot be opened ({error.strerror})"
    return one_line(error)
