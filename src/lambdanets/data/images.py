"""Reads image files of any format as 8-bit gray or RGB, and finds image files."""

import contextlib
import glob
import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from lambdanets.errors import InputError, one_line
from lambdanets.files import open_regular

IMAGE_SUFFIXES = frozenset(
    {
        ".avif", ".bmp", ".dib", ".gif", ".ico", ".j2k", ".jp2", ".jpe", ".jpeg", ".jpg", ".pbm", ".pcx", ".pgm",
        ".png", ".pnm", ".ppm", ".tga", ".tif", ".tiff", ".webp",
    }
)  # fmt: skip

_TRANSPOSED = (5, 6, 7, 8)  # EXIF orientations that swap width and height
# Large images are read or raise, and damaged metadata change no pixel.
_IGNORED_WARNINGS = [
    ("ignore", None, Image.DecompressionBombWarning, None, 0),
    ("ignore", None, UserWarning, re.compile(r"PIL\."), 0),
]
_GRAY_MODES = {"1", "L", "LA", "La"}


class UnreadableImage(InputError):  # noqa: N818 - named for the image, as in the report
    """An image cannot be read. path: its file, or the name of an image in memory; reason: the cause in a few words."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"cannot read the image {path}: {reason}")
        self.path = path
        self.reason = reason

    def __reduce__(self) -> tuple[type["UnreadableImage"], tuple[str, str]]:
        return type(self), (self.path, self.reason)  # by default an exception is unpickled from its message


def read_image(
    source: str | os.PathLike[str] | BinaryIO, name: str | None = None, *, known_size: tuple[int, int] | None = None
) -> Image.Image:
    """Read the first frame of an image as 8 bits: mode "L" where the source is gray, else "RGB".

    source: a path or a binary file; name: the image's name in errors, by default its path. Transparency is composited
    on white. The EXIF orientation is applied, unless only the stored pixels have the `known_size` (width, height) of
    the annotations. `to_gray_or_rgb` says how deeper pixels become 8 bits. The pixels are loaded, so the file may be
    closed. Raises UnreadableImage for what is missing, damaged, empty, no regular file (a named pipe is not opened) or
    no image, and above Pillow's limit against decompression bombs: 178,956,970 pixels, which take 1.4 GB to read in
    RGB, and 3.5 GB with transparency.
    """
    if name is None:
        name = os.fspath(source) if isinstance(source, str | os.PathLike) else str(getattr(source, "name", "memory"))
    # only once: each change of the filters shows earlier warnings again
    if any(ignored not in warnings.filters for ignored in _IGNORED_WARNINGS):
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
    try:
        with _open(source) as file, Image.open(file) as image:
            if image.width == 0 or image.height == 0:
                raise UnreadableImage(name, f"it is {image.width} x {image.height} pixels")
            image.load()
            transposed = image.getexif().get(ExifTags.Base.Orientation) in _TRANSPOSED
            if not (transposed and image.size == known_size != image.size[::-1]):
                ImageOps.exif_transpose(image, in_place=True)
            return to_gray_or_rgb(image)
    except UnreadableImage:
        raise
    except Exception as error:  # Pillow's decoders raise exceptions of many types for damaged files
        raise UnreadableImage(name, _reason(error, source)) from error


def _open(source: str | os.PathLike[str] | BinaryIO) -> contextlib.AbstractContextManager[BinaryIO]:
    return open_regular(source) if isinstance(source, str | os.PathLike) else contextlib.nullcontext(source)


def read_file(path: Path, start: int = 0, length: int = -1) -> bytes:
    """The bytes of a file, or length bytes from start of it. Raises UnreadableImage."""
    try:
        with open_regular(path) as file:
            file.seek(start)
            return file.read(length)
    except OSError as error:
        raise UnreadableImage(str(path), _reason(error, path)) from error


def to_gray_or_rgb(image: Image.Image) -> Image.Image:
    """Convert a Pillow image of any mode to "L" (if it is gray) or "RGB", with transparency composited on white.

    The scale depends on the mode alone: integers of more than 8 bits are in [0, 65535], floats in [0, 1], as in
    torchvision and scikit-image. Raises ValueError for values outside, whose scale is unknown.
    """
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return _deep_to_gray(image)
    if image.has_transparency_data:
        gray = image.mode in _GRAY_MODES
        layers = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, layers).convert("L" if gray else "RGB")
    converted = image.convert("L" if image.mode in _GRAY_MODES else "RGB")
    return image.copy() if converted is image else converted


def _deep_to_gray(image: Image.Image) -> Image.Image:
    values = np.asarray(image)
    kind, limit = ("floats", 1) if image.mode == "F" else ("integers", 65535)
    low, high = values.min().item(), values.max().item()  # NaN if any value is
    if not 0 <= low <= high <= limit:
        raise ValueError(
            f"its {kind} must be in 0..{limit}, got {low:g} to {high:g}; convert the images of the set to 8 or 16 bits"
        )
    return Image.fromarray(np.rint(values * np.float32(255 / limit)).astype(np.uint8))


def _reason(error: Exception, source: str | os.PathLike[str] | BinaryIO) -> str:
    if isinstance(error, UnidentifiedImageError):
        with _open(source) as file:
            empty = file.seekable() and file.seek(0, os.SEEK_END) == 0
        return "the file is empty" if empty else "it is not an image of a known format"
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if isinstance(error, OSError) and error.strerror:
        return f"it cannot be opened ({error.strerror})"
    return one_line(error)


def is_image_name(name: str) -> bool:
    """Whether a file name is not hidden and ends in one of IMAGE_SUFFIXES, ignoring case."""
    return not name.startswith(".") and Path(name).suffix.lower() in IMAGE_SUFFIXES


def list_images(folder: Path, is_wanted: Callable[[str], bool] = is_image_name) -> list[Path]:
    """The files in a folder and its sub-folders whose names pass `is_wanted`, sorted by path.

    Hidden sub-folders are skipped. Raises InputError for a folder that cannot be read.
    """
    return sorted(_walk(folder, is_wanted))


def _walk(folder: Path, is_wanted: Callable[[str], bool]) -> Iterator[Path]:
    seen: set[str] = set()

    def fail(error: OSError) -> None:
        raise InputError(f"cannot read the folder '{error.filename}': {error.strerror}") from error

    for parent, folders, files in os.walk(folder, onerror=fail, followlinks=True):
        real = os.path.realpath(parent)
        if real in seen:  # a symbolic link to a parent
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(parent, name) for name in files if is_wanted(name))


def find_images(inputs: Sequence[str]) -> list[Path]:
    """The image files that match paths, folders (searched recursively) and globs (`**` too), in order, each once.

    A file named by its path may have any suffix. Folders and globs yield the visible files with one of IMAGE_SUFFIXES,
    sorted by path. Raises InputError for an input that matches nothing.
    """
    unique: dict[str, Path] = {}
    for pattern in inputs:
        try:
            matches = _matches(pattern)
        except OSError as error:
            raise InputError(f"cannot read '{pattern}': {error.strerror}") from error
        if not matches:
            raise InputError(f"'{pattern}' must be an image, a folder of images or a glob, and matches nothing")
        for path in matches:
            unique.setdefault(str(path.absolute()), path)
    return list(unique.values())


def _matches(pattern: str) -> list[Path]:
    path = Path(pattern)
    if not pattern:
        return []
    if path.is_dir():
        return list_images(path)
    if path.exists():  # named pipes too, which are then reported as unreadable
        return [path]
    matches: list[Path] = []
    for match in sorted(map(Path, glob.glob(pattern, recursive=True))):  # noqa: PTH207 - Path.glob takes no absolute patterns
        if match.is_dir():
            matches += list_images(match)
        elif is_image_name(match.name):
            matches.append(match)
    return matches
