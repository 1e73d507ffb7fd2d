"""Finds image files in folders, and counts the files that it leaves out."""

import functools
import glob
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import NamedTuple

from PIL import Image

from lambdanets.data.images import FORMATS
from lambdanets.data.tars import TarMember, files_in_tar
from lambdanets.errors import InputError, first_few
from lambdanets.files import is_hidden, is_output
from lambdanets.terminal import echo


class FoundImages(NamedTuple):
    """Image files, and the reasons why other files and folders are left out."""

    paths: list[Path]
    reasons: dict[Path, str]

    @property
    def left_out(self) -> Counter[str]:
        """The number of files and folders that are left out, by reason."""
        return Counter(self.reasons.values())


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
    which have figures of images. Links to folders are followed, except to a folder above.
    """

    def fail(error: OSError) -> None:
        raise error

    found = FoundImages([], {})
    for parent, folders, files in os.walk(folder, onerror=fail, followlinks=True):
        path = Path(parent)
        folders[:] = [name for name in folders if not is_hidden(name) and not _is_circular(path / name, folder)]
        visible = [name for name in files if not is_hidden(name)]
        if is_output({*folders, *visible}):
            found.reasons[path] = f"output folder '{path.absolute().name}' of a command"
            folders.clear()
            continue
        if path != folder and not folders and not visible:
            found.reasons[path] = f"empty folder '{path.relative_to(folder)}'"
        for file in map(path.joinpath, visible):
            if accepts(file.name):
                found.paths.append(file)
            else:
                found.reasons[file] = describe_suffix(file)
    found.paths.sort()
    return found


def _is_circular(folder: Path, root: Path) -> bool:
    """Whether a folder in the root is a link to a folder above it, or above a link on its path."""
    real = folder.resolve() if folder.is_symlink() else None
    above = folder.parents[: len(folder.parts) - len(root.parts)]
    return real is not None and any(each.resolve().is_relative_to(real) for each in above)


def find_images(inputs: Sequence[str], accepts: Callable[[str], bool] = is_image_name) -> FoundImages:
    """List the image files of paths, folders (see `list_images`) and globs (also `**`), without duplicates.

    The result is in the order of the inputs, and sorted by path in a folder or glob. The path of a file may have any
    suffix. Of globs, only files whose names are accepted are found, and none that are hidden. Raises InputError for an
    input that matches nothing, and if the inputs have no images.
    """
    paths: dict[str, Path] = {}
    reasons: dict[Path, str] = {}
    for pattern in inputs:
        found = _find(Path(pattern), accepts)
        if not any(found):
            raise InputError(f"'{pattern}' must be an image, a folder of images or a glob, and matches nothing")
        for path in found.paths:
            paths.setdefault(str(path.absolute()), path)
        reasons |= found.reasons
    if inputs and not paths:
        got = f"none; {describe_left_out(Counter(reasons.values()))}"
        raise InputError(f"'{first_few(inputs)}' must be an image, a folder of images or a glob, and has {got}")
    return FoundImages([*paths.values()], reasons)


def _find(path: Path, accepts: Callable[[str], bool]) -> FoundImages:
    if path.is_dir():
        return list_images(path, accepts)
    if path.exists():  # true also for named pipes, which are later reported as unreadable
        return FoundImages([path], {})
    found = FoundImages([], {})
    num_hidden = sum(map(is_hidden, path.parts))
    for match in sorted(map(Path, glob.glob(str(path), recursive=True))):  # noqa: PTH207 - Path.glob takes no absolute patterns
        if sum(map(is_hidden, match.parts)) > num_hidden:
            continue
        is_taken = match.is_dir() or accepts(match.name)
        below = _find(match, accepts) if is_taken else FoundImages([], {match: describe_suffix(match)})
        found.paths.extend(below.paths)
        found.reasons.update(below.reasons)
    return found


def list_files(
    source: Path, accepts: Callable[[str], bool] = is_image_name
) -> tuple[list[tuple[PurePath, Path | TarMember]], Counter[str]]:
    """List the files of a folder (see `list_images`) or an uncompressed tar with their paths in it, sorted by path.

    Returns also the number of files that are left out, by reason. Raises InputError for an invalid tar.
    """
    if source.is_dir():
        found = list_images(source, accepts)
        return [(path.relative_to(source), path) for path in found.paths], found.left_out
    files = files_in_tar(source)
    left_out = Counter(describe_suffix(path) for path, _ in files if not accepts(path.name))
    return [(path, member) for path, member in files if accepts(path.name)], left_out


def describe_suffix(path: PurePath) -> str:
    """Describe why a file that is not an image is left out."""
    return path.suffix.lower() or "without a suffix"


def describe_classes(classes: Sequence[str]) -> str:
    """Format the number of classes and the first names, as one line."""
    return f"classes: {len(classes):,} ({first_few(classes)})"


def describe_left_out(left_out: Mapping[str, int]) -> str:
    """Format the number of files that were left out, by reason, as one line."""
    reasons = sorted(left_out.items(), key=lambda entry: (-entry[1], entry[0]))
    return f"left out: {first_few(f'{count:,} {reason}' for reason, count in reasons) or 'no files'}"


def report_left_out(found: FoundImages) -> None:
    """Print what was left out on stderr, if anything was."""
    if found.left_out:
        echo(describe_left_out(found.left_out), file=sys.stderr)
