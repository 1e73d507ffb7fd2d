"""Reads images in any format as 8-bit gray or RGB."""

import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import numpy as np
from PIL import ExifTags, Image, ImageOps, PngImagePlugin, UnidentifiedImageError

from lambdanets.data.pixels import convert_image, convert_pixels, to_8_bits
from lambdanets.data.tiff import HEADERS as TIFF_HEADERS
from lambdanets.data.tiff import read_tiff
from lambdanets.errors import EXTRAS, InputError, one_line
from lambdanets.files import open_regular
from lambdanets.terminal import plural

# Pillow's formats of pixels, the most frequent first. Its others are vector graphics (EPS starts Ghostscript), videos,
# or need a plug-in. JPEG includes MPO. pixels.py converts more than 8 bits; other readers, such as tiff.py, need their
# suffixes in image_search.py.
FORMATS = (
    "PNG", "JPEG", "GIF", "BMP", "PPM", "TIFF", "WEBP", "AVIF", "DCX", "DDS", "DIB", "ICNS", "ICO", "JPEG2000", "MSP",
    "PCX", "PSD", "QOI", "SGI", "SUN", "TGA", "XBM", "XPM",
)  # fmt: skip

# Large images are either read or raise an error, and damaged metadata do not change pixels.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
# Color profiles and texts of PNG files may have 64 MB, Pillow's limit for all of them, instead of 1 MB each.
PngImagePlugin.MAX_TEXT_CHUNK = max(PngImagePlugin.MAX_TEXT_CHUNK, PngImagePlugin.MAX_TEXT_MEMORY)


class UnreadableImage(InputError):  # noqa: N818 - it describes the image
    """An image cannot be read. path: its file, or the name of an image in memory. reason: the cause."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)  # pickle calls the class with them
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"cannot read the image {self.path}: {self.reason}"


def read_image(
    source: Any,
    name: str | None = None,
    *,
    channel: int | None = None,
    stretch: bool = False,
    known_size: tuple[int, int] | None = None,
    max_pixels: int | None = None,
) -> Image.Image:
    """Read an image with 8 bits per channel: mode "L" if it is gray or `channel` is given, else "RGB".

    source: a path, a file, a Pillow image, an array as for `convert_pixels`, or an object whose `open` returns one.
    name: name of the image in error messages, by default its path.
    channel: index of the channel, or of the plane of a stack, in the order of the file. Files with several need one,
        except color images; of an animation, the first frame is read.
    stretch: as in `to_8_bits`.
    known_size: (width, height) in the annotations. If the stored pixels have this size, but the rotated ones do not,
        the EXIF orientation is ignored. Otherwise it is applied.
    max_pixels: limit that is checked before the pixels are decoded.

    Training, prediction, evaluation and the demo page read all files by this function. Transparent pixels become white,
    and more than 8 bits are converted by `to_8_bits`. The pixels are loaded, so the file may be closed. Raises
    UnreadableImage for a file that is missing, damaged, empty, not a regular file (named pipes are not opened) or not
    an image, for one with values that `to_8_bits` does not accept or that is transparent everywhere, and above Pillow's
    limit against decompression bombs: 178,956,970 pixels, which need 1.4 GB of memory in RGB, and 3.5 GB with
    transparency; InputError if the folder of a file is missing.
    """

    def check_size(width: int, height: int) -> None:
        if width == 0 or height == 0:
            raise ValueError(f"it is {width} x {height} pixels")
        if max_pixels is not None and width * height > max_pixels:
            raise ValueError(f"it has {width} x {height} pixels, more than {max_pixels:,}; reduce its size")

    try:
        if isinstance(source, np.ndarray):
            return convert_pixels(source, channel, stretch)
        with open_image(source) as file:
            is_image, header = isinstance(file, Image.Image), b""
            if not is_image:
                file.seek(0)  # as Pillow does
                header = file.read(4)
                file.seek(0)
                if header in (b"", b"vers", b"<!DO", b"<htm"):
                    raise ValueError("it is empty, a pointer of Git LFS or a web page; download it again")
            content = read_tiff(file, channel, check_size) if header in TIFF_HEADERS else None
            if content is not None:
                pixels, orientation = content
                image = Image.fromarray(to_8_bits(pixels, stretch))
            else:
                stored = file if is_image else Image.open(file, formats=FORMATS)
                check_size(*stored.size)
                image = convert_image(stored, channel, stretch)  # before EXIF, which may decode PNG to 8 bits
                orientation = 1
                with suppress(Exception):  # damaged metadata do not change pixels
                    orientation = stored.getexif().get(ExifTags.Base.Orientation, 1)
        rotated = image
        if orientation != 1:
            image.info.clear()  # exif_transpose would write its EXIF, which fails if it is damaged
            image.getexif()[ExifTags.Base.Orientation] = orientation
            rotated = ImageOps.exif_transpose(image)
        return image if image.size == known_size != rotated.size else rotated
    except Exception as error:  # the decoders raise exceptions of many types for damaged files
        check_folder(error)
        raise UnreadableImage(name or str(source), describe_error(error)) from error


def check_folder(error: Exception) -> None:
    """Raise InputError if a file could not be opened because its folder is gone, such as a network share.

    The images must not be left out as unreadable.
    """
    if isinstance(error, OSError) and error.filename:
        folder = os.path.dirname(os.path.abspath(error.filename))  # noqa: PTH100, PTH120
        if not os.path.isdir(folder):  # noqa: PTH112 - false for all errors, such as a stale handle
            message = f"cannot read {error.filename}: its folder is missing; try again when it is back"
            raise InputError(message) from error


def open_image(source: Any) -> AbstractContextManager[Any]:
    """Open a source of `read_image`, for a `with` block. Raises OSError."""
    if isinstance(source, str | os.PathLike):
        return open_regular(source)
    # nullcontext leaves a file of the caller open
    return source.open() if hasattr(source, "open") else nullcontext(source)


def first_readable(load: Callable[[int], Any], indices: Sequence[int], split: str, max_unreadable: int) -> Any:
    """Load images until one can be read, and return it. Called before output is written.

    load: loads the image at an index, or raises UnreadableImage.
    split: name of the set in messages.

    Raises InputError if no image can be read, or none of the first max_unreadable + 1.
    """
    unreadable: list[str] = []
    for index in indices:
        try:
            return load(index)
        except UnreadableImage as error:
            unreadable.append(f"{error.path}: {error.reason}")
            check_unreadable(unreadable, max_unreadable)
    raise InputError(f"none of the {len(indices)} {split} images can be read: {'; '.join(unreadable[:3])}; repair them")


def check_unreadable(messages: Sequence[str], limit: int) -> None:
    """Raise InputError, which includes the first three messages, if there are more than `limit`."""
    if len(messages) > limit:
        raise InputError(
            f"{plural(len(messages), 'image')} cannot be read, more than max_unreadable ({limit}): "
            f"{'; '.join(messages[:3])}{' ...' if len(messages) > 3 else ''}; repair them, or raise max_unreadable and "
            "run the command again"
        )


def describe_error(error: Exception) -> str:
    """Describe why an image, or a file that has images, cannot be read."""
    if isinstance(error, UnidentifiedImageError):
        return "it is not an image of a known format; convert it to TIFF, PNG or JPEG"
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if isinstance(error, OSError) and error.strerror:
        return f"it cannot be read: {error.strerror}"
    if isinstance(error, ModuleNotFoundError) or "'imagecodecs' package" in str(error):  # raised by tifffile
        return f'its pixels need imagecodecs; install it with: pip install "lambdanets[{EXTRAS["imagecodecs"]}]"'
    return one_line(error)
