"""Reads images in any format as 8-bit gray or RGB."""

import contextlib
import logging
import math
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.ExifTags import Base

from lambdanets.data.pixels import check_channel, convert_image, convert_pixels
from lambdanets.data.tars import TarMember
from lambdanets.errors import EXTRAS, InputError, one_line
from lambdanets.files import open_regular

# Pillow's formats of pixels, the most frequent first. Its others are vector graphics (EPS starts Ghostscript), videos,
# or need a plug-in. JPEG includes MPO. pixels.py converts more than 8 bits; other readers, such as `_read_tiff`, need
# their suffixes in image_search.py.
FORMATS = (
    "PNG", "JPEG", "GIF", "BMP", "PPM", "TIFF", "WEBP", "AVIF", "DCX", "DDS", "DIB", "ICNS", "ICO", "JPEG2000", "MSP",
    "PCX", "PSD", "QOI", "SGI", "SUN", "TGA", "XBM", "XPM",
)  # fmt: skip

_TRANSPOSED = (5, 6, 7, 8)  # EXIF orientations that swap width and height
_TIFF_HEADERS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_NUM_COLORS = {"RGB": 3, "YCBCR": 3, "CIELAB": 3, "SEPARATED": 4}  # by PhotometricInterpretation; others have 1
_ALPHAS = ((1,), (2,))  # ExtraSamples

# Large images are either read or raise an error, and damaged metadata do not change pixels.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
logging.getLogger("tifffile").setLevel(logging.CRITICAL)


class UnreadableImage(InputError):  # noqa: N818 - it describes the image
    """An image cannot be read. path: its file, or the name of an image in memory. reason: the cause."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"cannot read the image {self.path}: {self.reason}"


def read_image(
    source: str | os.PathLike[str] | BinaryIO,
    name: str | None = None,
    *,
    channel: int | None = None,
    stretch: bool = False,
    known_size: tuple[int, int] | None = None,
    max_pixels: int | None = None,
) -> Image.Image:
    """Read an image with 8 bits per channel: mode "L" if it is gray or `channel` is given, else "RGB".

    source: a path or a binary file.
    name: name of the image in error messages, by default its path.
    channel: index of the channel, or of the plane of a stack, in the order of the file. Files with several need one,
        except color images; of an animation, the first frame is read.
    stretch: as in `to_8_bits`.
    known_size: (width, height) in the annotations. If the stored pixels have this size, but the rotated ones do not,
        the EXIF orientation is ignored. Otherwise it is applied.
    max_pixels: limit that is checked before the pixels are decoded.

    All commands read all files by this function. Transparent pixels become white, and more than 8 bits are converted by
    `to_8_bits`. The pixels are loaded, so the file may be closed. Raises UnreadableImage for a file that is missing,
    damaged, empty, not a regular file (named pipes are not opened) or not an image, with values that `to_8_bits` does
    not accept, or transparent everywhere, and above Pillow's limit against decompression bombs: 178,956,970 pixels,
    which need 1.4 GB of memory in RGB, and 3.5 GB with transparency.
    """
    if name is None:
        name = os.fspath(source) if isinstance(source, str | os.PathLike) else str(getattr(source, "name", "memory"))

    def check_size(width: int, height: int) -> None:
        if width == 0 or height == 0:
            raise ValueError(f"it is {width} x {height} pixels")
        if max_pixels is not None and width * height > max_pixels:
            raise ValueError(f"it has {width} x {height} pixels, more than {max_pixels:,}; reduce its size")

    try:
        with _open(source) as file:
            file.seek(0)  # as Pillow does
            is_tiff = file.read(4) in _TIFF_HEADERS
            file.seek(0)
            converted = _read_tiff(file, channel, stretch, check_size) if is_tiff else None
            if converted is not None:
                image, orientation = converted
            else:
                with Image.open(file, formats=FORMATS) as stored:
                    check_size(*stored.size)
                    image = convert_image(stored, channel, stretch)
                    orientation = stored.getexif().get(Base.Orientation, 1)
        if orientation == 1 or (orientation in _TRANSPOSED and image.size == known_size != image.size[::-1]):
            return image
        image.getexif()[Base.Orientation] = orientation
        return ImageOps.exif_transpose(image)
    except Exception as error:  # the decoders raise exceptions of many types for damaged files
        raise UnreadableImage(name, describe_error(error, source)) from error


def _read_tiff(
    file: BinaryIO, channel: int | None, stretch: bool, check_size: Callable[[int, int], None]
) -> tuple[Image.Image, int] | None:
    """Return a TIFF image with more than 8 bits, or several planes, and its orientation.

    None for one image of 8 bits, which Pillow reads. check_size: is called with width and height before the pixels are
    decoded. Other arguments and errors: as in `read_image`.
    """
    from tifffile import TiffFile

    with TiffFile(file) as tiff:
        series = tiff.series[0]
        page, shape, axes = series.keyframe, series.shape, series.axes
        if series.dtype is None or "Y" not in axes or "X" not in axes or min(shape) < 1:
            raise ValueError(f"its axes are {axes} of sizes {shape}, not those of an image")
        check_size(shape[axes.index("X")], shape[axes.index("Y")])
        num_planes = math.prod(side for side, axis in zip(shape, axes, strict=True) if axis not in "YX")
        colors, photometric = _NUM_COLORS.get(page.photometric.name, 1), page.photometric.name
        has_alpha = page.extrasamples[:1] in _ALPHAS or (colors == 3 and not page.extrasamples)
        is_image = num_planes == page.samplesperpixel and (
            num_planes == colors or (num_planes == colors + 1 and (colors > 1 or has_alpha))
        )
        if is_image and series.dtype in (np.uint8, bool):
            return None
        if is_image and photometric not in ("RGB", "MINISBLACK", "MINISWHITE"):
            raise ValueError(f"its {photometric} colors have more than 8 bits; convert it to RGB")
        if not is_image and channel is None:
            planes = f"{num_planes} channels or planes (axes {axes}: {' x '.join(map(str, shape))})"
            raise ValueError(f"it has {planes}; choose one with --channel, in Python with channel=")
        if not is_image and channel is not None:
            check_channel(channel, num_planes)
        one_per_page = len(series.pages) == num_planes and page.shape == tuple(shape[axes.index(a)] for a in "YX")
        if one_per_page and not is_image:
            pixels = series.pages[channel].asarray()
        else:
            order = [axes.index("Y"), axes.index("X"), *(i for i, axis in enumerate(axes) if axis not in "YX")]
            pixels = series.asarray().transpose(order)
            pixels = pixels.reshape(*pixels.shape[:2], num_planes)
            if is_image and num_planes > 1:
                pixels = pixels[..., : num_planes if has_alpha else colors]
            else:
                pixels = pixels[..., channel or 0]
        if photometric == "MINISWHITE":  # 0 is white
            pixels = (2**page.bitspersample - 1 if pixels.dtype.kind == "u" else 1) - pixels
        orientation = int(page.tags.valueof(Base.Orientation, 1))
        return convert_pixels(pixels, channel if is_image else None, stretch), orientation


def check_readable(load: Callable[[int], Any], count: int, split: str, max_unreadable: int) -> None:
    """Load the images 0 to count - 1 until one can be read, usually the first. Called before output is written.

    load: loads the image at an index, or raises UnreadableImage.
    split: name of the set in messages.

    Raises InputError if no image can be read, or more than max_unreadable cannot be read.
    """
    unreadable: list[str] = []
    for index in range(count):
        try:
            load(index)
            return
        except UnreadableImage as error:
            unreadable.append(f"{error.path}: {error.reason}")
        if len(unreadable) < count:
            check_unreadable(unreadable, max_unreadable)
    if unreadable:
        raise InputError(f"none of the {count} {split} images can be read; the first: {unreadable[0]}")


def check_unreadable(messages: Sequence[str], limit: int) -> None:
    """Raise InputError, which includes the first three messages, if there are more than `limit`."""
    if len(messages) > limit:
        raise InputError(
            f"{len(messages)} images cannot be read, more than max_unreadable ({limit}): {'; '.join(messages[:3])}"
            f"{' ...' if len(messages) > 3 else ''}; repair them, or raise max_unreadable and run the command again"
        )


def _open(source: str | os.PathLike[str] | BinaryIO) -> contextlib.AbstractContextManager[BinaryIO]:
    return open_regular(source) if isinstance(source, str | os.PathLike) else contextlib.nullcontext(source)


def read_file(file: Path | TarMember) -> bytes:
    """Read a file, which may be in a tar. Raises UnreadableImage.

    A tar is opened for each image, because forked workers would share the position of an open file.
    """
    path, start, length = (file.tar, file.start, file.length) if isinstance(file, TarMember) else (file, 0, -1)
    try:
        with open_regular(path) as opened:
            opened.seek(start)
            return opened.read(length)
    except OSError as error:
        raise UnreadableImage(str(path), describe_error(error, path)) from error


def describe_error(error: Exception, source: str | os.PathLike[str] | BinaryIO) -> str:
    """Describe in one line why a file cannot be read."""
    if isinstance(error, UnidentifiedImageError):
        with _open(source) as file:
            empty = file.seekable() and file.seek(0, os.SEEK_END) == 0
        return "the file is empty" if empty else "it is not an image of a known format"
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if isinstance(error, OSError) and error.strerror:
        return f"it cannot be opened ({error.strerror})"
    if isinstance(error, ModuleNotFoundError) or "'imagecodecs' package" in str(error):  # raised by tifffile
        return f"its pixels need imagecodecs; install it with: pip install 'lambdanets[{EXTRAS['imagecodecs']}]'"
    return one_line(error)
