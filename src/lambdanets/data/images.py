"""Reading an image file of any kind as 8-bit grey or RGB, and finding image files."""

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

_TURNED = (5, 6, 7, 8)  # EXIF orientations that swap width and height
# Filters: a large image is read or refused, and metadata that are damaged change no pixel.
_QUIET = [
    ("ignore", None, Image.DecompressionBombWarning, None, 0),
    ("ignore", None, UserWarning, re.compile(r"PIL\."), 0),
]
_GREY_MODES = {"1", "L", "LA", "La"}


class UnreadableImage(InputError):  # noqa: N818 - it names what was found, as the report does
    """An image that cannot be read.

    `path` is the file's name (or a stand-in for an image in memory), `reason` the cause in a few words.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"expected a readable image in {path}, but {reason}")
        self.path = path
        self.reason = reason

    def __reduce__(self) -> tuple[type["UnreadableImage"], tuple[str, str]]:
        return type(self), (self.path, self.reason)  # an exception is otherwise rebuilt from its message alone


def read_image(
    source: str | os.PathLike[str] | BinaryIO, name: str | None = None, *, known_size: tuple[int, int] | None = None
) -> Image.Image:
    """Read the first frame of an image as 8 bits, upright: mode "L" where the source is grey, else "RGB".

    `source` is a path or a binary file, `name` what to call it in an error (by default its path).
    Transparency is composed onto white and the EXIF orientation applied; not where the stored pixels alone have the
    `known_size` (width, height), as whoever measured it saw them. `to_gray_or_rgb` says how deeper pixels become
    8 bits. The pixels are loaded fully, so the file may be closed. Raises UnreadableImage for anything that is missing,
    damaged, empty, not a file (a named pipe is not opened) or not an image, and for one beyond Pillow's limit against
    decompression bombs: 178,956,970 pixels, which take 1.4 GB to read in RGB, and 3.5 GB with transparency.
    """
    if name is None:
        name = os.fspath(source) if isinstance(source, str | os.PathLike) else str(getattr(source, "name", "memory"))
    # once: each change of a filter makes warnings that were shown appear again
    if any(quiet not in warnings.filters for quiet in _QUIET):
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
    try:
        with _opened(source) as file, Image.open(file) as image:
            if image.width == 0 or image.height == 0:
                raise UnreadableImage(name, f"it is {image.width} x {image.height} pixels")
            image.load()
            turned = image.getexif().get(ExifTags.Base.Orientation) in _TURNED
            if not (turned and image.size == known_size != image.size[::-1]):
                ImageOps.exif_transpose(image, in_place=True)
            return to_gray_or_rgb(image)
    except UnreadableImage:
        raise
    except Exception as error:  # Pillow's decoders let many kinds of exception out of a damaged file
        raise UnreadableImage(name, _reason(error, source)) from error


def _opened(source: str | os.PathLike[str] | BinaryIO) -> contextlib.AbstractContextManager[BinaryIO]:
    return open_regular(source) if isinstance(source, str | os.PathLike) else contextlib.nullcontext(source)


def read_file(path: Path, start: int = 0, length: int = -1) -> bytes:
    """The bytes of an image file, or of one inside a larger file. Raises UnreadableImage where it cannot be read."""
    try:
        with open_regular(path) as file:
            file.seek(start)
            return file.read(length)
    except OSError as error:
        raise UnreadableImage(str(path), _reason(error, path)) from error


def to_gray_or_rgb(image: Image.Image) -> Image.Image:
    """Convert a Pillow image of any mode to "L" (if it is grey) or "RGB", with transparency composed onto white.

    All images of a mode have the same scale: integers of more than 8 bits go from 0 to 65535, floats from 0 to 1, as in
    torchvision and scikit-image. Raises ValueError for a value outside, whose scale is not known.
    """
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return _deep_to_grey(image)
    if image.has_transparency_data:
        grey = image.mode in _GREY_MODES
        layers = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, layers).convert("L" if grey else "RGB")
    converted = image.convert("L" if image.mode in _GREY_MODES else "RGB")
    return image.copy() if converted is image else converted


def _deep_to_grey(image: Image.Image) -> Image.Image:
    values = np.asarray(image)
    kind, top = ("floats", 1) if image.mode == "F" else ("integers", 65535)
    low, high = values.min().item(), values.max().item()  # nan where there is one
    if not 0 <= low <= high <= top:
        raise ValueError(
            f"its {kind} must lie in 0..{top}, got {low:g} to {high:g}; convert all images of the set to 8 or 16 bits"
        )
    return Image.fromarray(np.rint(values * np.float32(255 / top)).astype(np.uint8))


def _reason(error: Exception, source: str | os.PathLike[str] | BinaryIO) -> str:
    if isinstance(error, UnidentifiedImageError):
        with _opened(source) as file:
            empty = file.seekable() and file.seek(0, os.SEEK_END) == 0
        return "the file is empty" if empty else "it is not an image of a known format"
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if isinstance(error, OSError) and error.strerror:
        return f"it cannot be opened ({error.strerror})"
    return one_line(error)


def is_image_name(name: str) -> bool:
    """Whether a file name is visible and ends in one of IMAGE_SUFFIXES, in whatever case."""
    return not name.startswith(".") and Path(name).suffix.lower() in IMAGE_SUFFIXES


def images_under(folder: Path, is_wanted: Callable[[str], bool] = is_image_name) -> list[Path]:
    """All files of wanted names (by default images by suffix) in a folder and its sub-folders, sorted by path.

    Hidden sub-folders are skipped. Raises InputError for a folder that cannot be read.
    """
    return sorted(_walk(folder, is_wanted))


def _walk(folder: Path, is_wanted: Callable[[str], bool]) -> Iterator[Path]:
    seen: set[str] = set()

    def refuse(error: OSError) -> None:
        raise InputError(f"expected to read the folder '{error.filename}', but: {error.strerror}") from error

    for place, folders, files in os.walk(folder, onerror=refuse, followlinks=True):
        real = os.path.realpath(place)
        if real in seen:  # a link back up would never end
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(place, name) for name in files if is_wanted(name))


def find_images(inputs: Sequence[str]) -> list[Path]:
    """The image files that files, folders (with sub-folders) and globs (`**` too) name, each once, in order.

    A file given by name is taken whatever its suffix; from folders and globs only visible files with one of
    IMAGE_SUFFIXES are, sorted by path. Raises InputError for an input that matches nothing.
    """
    found: dict[str, Path] = {}
    for text in inputs:
        try:
            matches = _matches(text)
        except OSError as error:
            raise InputError(f"expected '{text}' to name images, but it cannot be read ({error.strerror})") from error
        if not matches:
            raise InputError(f"expected '{text}' to name an image, a folder of images or a glob, but it matches none")
        for path in matches:
            found.setdefault(str(path.absolute()), path)
    return list(found.values())


def _matches(text: str) -> list[Path]:
    path = Path(text)
    if not text:
        return []
    if path.is_dir():
        return images_under(path)
    if path.exists():  # a named pipe too, which is then named as unreadable
        return [path]
    matches: list[Path] = []
    for match in sorted(map(Path, glob.glob(text, recursive=True))):  # noqa: PTH207 - Path.glob takes no absolute one
        if match.is_dir():
            matches += images_under(match)
        elif is_image_name(match.name):
            matches.append(match)
    return matches
