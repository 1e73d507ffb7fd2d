"""Finds image files in folders, and counts the files that it leaves out."""

import functools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import NamedTuple

from PIL import Image

from lambdanets.data.images import FORMATS
from lambdanets.data.tars import TarMember, files_in_tar
from lambdanets.errors import InputError, first_few
from lambdanets.files import is_hidden, is_output


class FoundImages(NamedTuple):
    """Image files, and the number of other files and folders, which are left out, by reason."""

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


def list_files(
    source: Path, accepts: Callable[[str], bool] = is_image_name
) -> tuple[list[tuple[PurePath, Path | TarMember]], Counter[str]]:
    """List the files of a folder and its sub-folders, or of an uncompressed tar, with their paths in it, sorted.

    accepts: whether to include a file, by its name.

    Hidden files and folders are skipped (see `is_hidden`), and the output folders of this package, which have figures
    of images. Links to folders are followed, except to a folder above. Returns also the number of files that are left
    out, by reason. Raises InputError for an invalid tar.
    """
    left_out = Counter[str]()
    files: Sequence[tuple[PurePath, Path | TarMember]]
    files = sorted(_walk(source, left_out)) if source.is_dir() else files_in_tar(source)
    left_out.update(path.suffix.lower() or "without a suffix" for path, _ in files if not accepts(path.name))
    return [(path, file) for path, file in files if accepts(path.name)], left_out


def _walk(folder: Path, left_out: Counter[str]) -> Iterator[tuple[PurePath, Path]]:
    def fail(error: OSError) -> None:
        raise error

    for parent, folders, files in os.walk(folder, onerror=fail, followlinks=True):
        path, inner = Path(parent), Path(parent).relative_to(folder)
        folders[:] = [name for name in folders if not is_hidden(name) and not _is_circular(path / name, folder)]
        visible = [name for name in files if not is_hidden(name)]
        if is_output({*folders, *visible}):
            left_out[f"output folder '{path.absolute().name}' of a command"] += 1
            folders.clear()
            continue
        if path != folder and not folders and not visible:
            left_out[f"empty folder '{inner}'"] += 1
        yield from ((inner / name, path / name) for name in visible)


def _is_circular(folder: Path, root: Path) -> bool:
    """Whether a folder in the root is a link to a folder above it, or above a link on its path."""
    above = folder.parents[: len(folder.parts) - len(root.parts)]
    return folder.is_symlink() and any(each.resolve().is_relative_to(folder.resolve()) for each in above)


def find_images(inputs: Sequence[str], accepts: Callable[[str], bool] = is_image_name) -> FoundImages:
    """List the image files of paths and folders (see `list_files`) in the order of the inputs, without duplicates.

    The path of a file may have any suffix. Raises InputError for an input that is missing or an empty folder, and if
    the inputs have no images.
    """
    paths: dict[str, Path] = {}
    left_out = Counter[str]()
    sources = {Path(name).absolute() for name in inputs}
    for path in dict.fromkeys(map(Path, inputs)):
        if path.is_dir():
            files, others = list_files(path, accepts)
        else:  # also a named pipe, unreadable later
            files, others = [(PurePath(), path)] if path.exists() else [], Counter()
        if not files and not others:
            raise InputError(f"'{path}' must be an image or a folder of images, and is missing or empty")
        for inner, _ in files:
            paths.setdefault(str((path / inner).absolute()), path / inner)
        if sources.isdisjoint(path.absolute().parents):  # otherwise counted in the folder above
            left_out += others
    if inputs and not paths:
        got = f"none; {describe_left_out(left_out)}"
        raise InputError(f"'{first_few(inputs)}' must be an image or a folder of images, and has {got}")
    return FoundImages([*paths.values()], left_out)


def describe_classes(classes: Sequence[str]) -> str:
    """Format the number of classes and the first names, as one line."""
    return f"classes: {len(classes):,} ({first_few(classes)})"


def describe_left_out(left_out: Mapping[str, int]) -> str:
    """Format the number of files that were left out, by reason, as one line."""
    reasons = sorted(left_out.items(), key=lambda entry: (-entry[1], entry[0]))
    return f"left out: {first_few(f'{count:,} {reason}' for reason, count in reasons) or 'no files'}"
