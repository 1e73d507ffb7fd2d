"""Finds image files in folders, and counts the files that it leaves out."""

import functools
import glob
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import NamedTuple

from PIL import Image

from lambdanets.data.images import FORMATS
from lambdanets.errors import InputError, first_few
from lambdanets.files import is_hidden, is_output
from lambdanets.terminal import echo

_MAX_REASONS = 6  # in a line


class FoundImages(NamedTuple):
    """Image files, and the number of files that were left out, by reason: no images, or in the output of a command."""

    paths: list[Path]
    left_out: Counter[str]


@functools.cache
def image_suffixes() -> frozenset[str]:
    """The file name suffixes of the formats that are read, in lower case, with the dot."""
    Image.init()
    formats = {*FORMATS, "MPO"}  # which Pillow opens as JPEG
    return frozenset(suffix for suffix, name in Image.registered_extensions().items() if name in formats)


def is_image_name(name: str) -> bool:
    """Whether a file name ends in one of `image_suffixes`, ignoring case."""
    return os.path.splitext(name)[1].lower() in image_suffixes()  # noqa: PTH122 - is fast


def list_images(folder: Path, accepts: Callable[[str], bool] = is_image_name) -> FoundImages:
    """List the image files in a folder and its sub-folders, sorted by path.

    accepts: whether to include a file, by its name.

    Hidden files and folders are skipped (see `is_hidden`), and the output folders of this package,
    which have figures of images. Raises InputError for a folder that cannot be read.
    """
    return _collect(_search(folder, accepts))


def find_images(inputs: Sequence[str], accepts: Callable[[str], bool] = is_image_name) -> FoundImages:
    """List the image files of paths, folders (searched recursively) and globs (also `**`), without duplicates.

    The result is in the order of the inputs. The path of a file may have any suffix. In folders and globs, only files
    whose names are accepted are found, sorted by path, and none in output folders of this package. Raises InputError
    for an input that matches nothing, and if the inputs have no images.
    """
    unique: dict[tuple[str, str], Path] = {}
    for pattern in inputs:
        try:
            matches = list(_match(pattern, accepts))
        except OSError as error:
            raise InputError(f"cannot read '{pattern}': {error.strerror}") from error
        if not matches:
            raise InputError(f"'{pattern}' must be an image, a folder of images or a glob, and matches nothing")
        for path, reason in matches:
            unique.setdefault((str(path.absolute()), reason), path)
    found = _collect((path, reason) for (_, reason), path in unique.items())
    if inputs and not found.paths:
        raise InputError(f"'{first_few(inputs)}' must have images, and has none ({_format(found.left_out)})")
    return found


def _collect(files: Iterable[tuple[Path, str]]) -> FoundImages:
    files = list(files)
    left_out = Counter(reason for _, reason in files if reason)
    return FoundImages([path for path, reason in files if not reason], left_out)


def _search(folder: Path, accepts: Callable[[str], bool], reason: str = "") -> Iterator[tuple[Path, str]]:
    """Yield each visible file in a folder and below, sorted by path, and why it is left out, or "".

    reason: why all of them are left out, or "".
    """
    try:
        with os.scandir(folder) as entries:
            is_folder = {entry.name: entry.is_dir() for entry in entries if not is_hidden(entry.name)}
    except OSError as error:
        raise InputError(f"cannot read the folder '{error.filename}': {error.strerror}") from error
    if not reason and is_output(is_folder.keys()):
        reason = _describe_output(folder)
    for name in sorted(is_folder):
        path = folder / name
        if is_folder[name]:
            yield from _search(path, accepts, reason)
        elif accepts(name):
            yield path, reason
        elif not reason:
            yield path, describe_suffix(path)


def _match(pattern: str, accepts: Callable[[str], bool]) -> Iterator[tuple[Path, str]]:
    """Yield the files of an input of `find_images`, as `_search` does."""
    path = Path(pattern)
    if path.exists() and not path.is_dir():  # true also for named pipes, which are later reported as unreadable
        yield path, ""
        return
    is_output_folder = functools.cache(lambda folder: is_output({inside.name for inside in folder.iterdir()}))
    num_fixed = next((i for i, part in enumerate(path.parts) if glob.has_magic(part)), len(path.parts))
    matches = [path] if path.is_dir() else sorted(map(Path, glob.glob(pattern, recursive=True)))  # noqa: PTH207 - Path.glob takes no absolute patterns
    for match in matches:
        if any(map(is_hidden, match.parts[num_fixed:])):
            continue
        folders = (folder for folder in match.parents if len(folder.parts) >= num_fixed)
        reason = next(map(_describe_output, filter(is_output_folder, folders)), "")
        if match.is_dir():
            yield from _search(match, accepts, reason)
        elif accepts(match.name):
            yield match, reason
        elif not reason:
            yield match, describe_suffix(match)


def describe_suffix(path: PurePath) -> str:
    """Describe why a file that is not an image is left out."""
    return path.suffix.lower() or "without a suffix"


def _describe_output(folder: PurePath) -> str:
    """Describe why images in an output folder of this package are left out."""
    return f"in {folder.name or folder}, the output of a command"


def describe_classes(classes: Sequence[str]) -> str:
    """Format the number of classes and the first names, as one line."""
    return f"classes: {len(classes):,} ({first_few(classes)})"


def describe_left_out(left_out: Mapping[str, int]) -> str:
    """Format the number of files that were left out, by reason, as one line."""
    return f"left out: {_format(left_out) or 'no files'}"


def _format(left_out: Mapping[str, int]) -> str:
    reasons = sorted(left_out.items(), key=lambda entry: (-entry[1], entry[0]))
    texts = [f"{count:,} {reason}" for reason, count in reasons]
    return "; ".join(texts[:_MAX_REASONS] + ["..."] * (len(texts) > _MAX_REASONS))


def report_left_out(found: FoundImages) -> None:
    """Print what was left out on stderr, if anything was."""
    if found.left_out:
        echo(describe_left_out(found.left_out), file=sys.stderr)
