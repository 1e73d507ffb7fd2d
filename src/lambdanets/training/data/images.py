"""Reading an image file of any kind as 8-bit grey or RGB, and finding image files."""

import glob
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from lambdanets.errors import InputError

IMAGE_SUFFIXES = frozenset(
    {
        ".avif", ".bmp", ".dib", ".gif", ".ico", ".j2k", ".jp2", ".jpe", ".jpeg", ".jpg", ".pbm", ".pcx", ".pgm",
        ".png", ".pnm", ".ppm", ".tga", ".tif", ".tiff", ".webp",
    }
)  # fmt: skip

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
    `known_size` (width, height), as whoever measured it saw them. `to_grey_or_rgb` says how deeper pixels become
    8 bits. The pixels are loaded fully, so the file may be closed. Raises UnreadableImage for anything that is missing,
    damaged, empty, too large (Pillow's limit against decompression bombs) or not an image.
    """
    if name is None:
        name = os.fspath(source) if isinstance(source, str | os.PathLike) else str(getattr(source, "name", "memory"))
    try:
        with Image.open(source) as image:
            if image.width == 0 or image.height == 0:
                raise UnreadableImage(name, f"it is {image.width} x {image.height} pixels")
            image.load()
            upright = ImageOps.exif_transpose(image)
            as_stored = image.size == known_size and upright.size != known_size
            return to_grey_or_rgb(image if as_stored else upright)
    except UnreadableImage:
        raise
    except Exception as error:  # Pillow's decoders let many kinds of exception out of a damaged file
        raise UnreadableImage(name, _reason(error, source)) from error


def read_file(path: Path, start: int = 0, length: int = -1) -> bytes:
    """The bytes of an image file, or of one inside a larger file. Raises UnreadableImage where it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(length)
    except OSError as error:
        raise UnreadableImage(str(path), _reason(error, path)) from error


def to_grey_or_rgb(image: Image.Image) -> Image.Image:
    """Convert a Pillow image of any mode to "L" (if it is grey) or "RGB", with transparency composed onto white.

    16-bit grey is scaled from 0..65535. Wider pixels (modes I and F) are scaled from the narrowest of these ranges
    that holds all of them: 0..1 (F only), 0..255 (F only), 0..65535; and from their own range if none does.
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
    values = np.nan_to_num(np.asarray(image, dtype=np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    low, high = float(values.min()), float(values.max())
    tops = (1.0, 255.0, 65535.0) if image.mode == "F" else (65535.0,)
    top = next((top for top in tops if low >= 0 and high <= top), None)
    scaled = values / top if top is not None else (values - low) / (high - low or 1.0)
    return Image.fromarray(np.rint(scaled * 255).astype(np.uint8))


def _reason(error: Exception, source: str | os.PathLike[str] | BinaryIO) -> str:
    if isinstance(error, UnidentifiedImageError):
        if isinstance(source, str | os.PathLike) and Path(source).stat().st_size == 0:
            return "the file is empty"
        return "it is not an image of a known format"
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if isinstance(error, OSError) and error.strerror:
        return f"it cannot be opened ({error.strerror})"
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


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
    if path.is_file():
        return [path]
    if path.is_dir():
        return images_under(path)
    matches: list[Path] = []
    for match in sorted(map(Path, glob.glob(text, recursive=True))):  # noqa: PTH207 - Path.glob takes no absolute one
        if match.is_dir():
            matches += images_under(match)
        elif is_image_name(match.name):
            matches.append(match)
    return matches
