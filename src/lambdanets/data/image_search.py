"""Finds image files in folders, and counts the files that it leaves out."""

import functools
import glob
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from PIL import Image

from lambdanets.data.images import FORMATS
from lambdanets.errors import InputError, first_few
from lambdanets.files import is_hidden, is_output
from lambdanets.terminal import echo

_MAX_REASONS = 6  # in a line


@dataclass(frozen=True)
class FoundImages:
    """Image files, and why others are left out: no images, images in output folders of commands, empty folders."""

    paths: list[Path]
    reasons: dict[Path, str] = field(default_factory=dict)

    @property
    def left_out(self) -> Counter[str]:
        """The number of files that were left out, by reason."""
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
    which have figures of images. Raises InputError for a folder that cannot be read.
    """
    found = FoundImages([])
    output: Path | None = None  # the output folder of a command that is being walked through
    for parent, folders, names in _walk(folder):
        if output is None or not parent.is_relative_to(output):
            output = parent if is_output({*folders, *names}) else None
        if parent != folder and not folders and not names:
            found.reasons[parent] = f"empty folder '{parent.relative_to(folder)}'"
        for path in map(parent.joinpath, names):
            if output is not None:
                found.reasons[path] = f"in {output.name}, the output of a command"
            elif accepts(path.name):
                found.paths.append(path)
            else:
                found.reasons[path] = describe_suffix(path)
    found.paths.sort()
    return found


def _walk(folder: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Yield each folder that is not hidden, with the names of its sub-folders and files, without hidden ones.

    A folder is yielded under each link to it, but not within itself.
    """

    def fail(error: OSError) -> None:
        raise InputError(f"cannot read the folder '{error.filename}': {error.strerror}") from error

    for parent, folders, files in os.walk(folder, onerror=fail, followlinks=True):
        path, real = Path(parent), os.path.realpath(parent)
        above = path.parents[: len(path.parts) - len(folder.parts)]
        folders[:] = sorted(name for name in folders if not is_hidden(name))
        if real in map(os.path.realpath, above):  # a symbolic link to a parent
            folders.clear()
        else:
            yield path, folders, [name for name in files if not is_hidden(name)]


def find_images(inputs: Sequence[str], accepts: Callable[[str], bool] = is_image_name) -> FoundImages:
    """List the image files of paths, folders (searched recursively) and globs (also `**`), without duplicates.

    The result is in the order of the inputs. A file that is an input or matches a glob may have any suffix, as if a
    shell had expanded it. In folders, only files whose names are accepted are found, sorted by path, and none in output
    folders of this package. Raises InputError for an input that matches nothing, and if the inputs have no images.
    """
    paths: dict[str, Path] = {}
    reasons: dict[Path, str] = {}
    for pattern in inputs:
        matches = [pattern]
        if not Path(pattern).exists():
            expanded = glob.glob(pattern, recursive=True)  # noqa: PTH207 - Path.glob takes no absolute patterns
            given = {*Path(pattern).parts}
            matches = sorted(match for match in expanded if not any(map(is_hidden, {*Path(match).parts} - given)))
        found = [list_images(path, accepts) if path.is_dir() else FoundImages([path]) for path in map(Path, matches)]
        if not any(each.paths or each.reasons for each in found):
            raise InputError(f"'{pattern}' must be an image, a folder of images or a glob, and matches nothing")
        for each in found:
            for path in each.paths:
                paths.setdefault(str(path.absolute()), path)
            reasons |= each.reasons
    if inputs and not paths:
        left_out = _format(Counter(reasons.values()))
        raise InputError(
            f"'{first_few(inputs)}' must be an image, a folder of images or a glob, and has none ({left_out})"
        )
    return FoundImages([*paths.values()], reasons)


def describe_suffix(path: PurePath) -> str:
    """Describe why a file that is not an image is left out."""
    return path.suffix.lower() or "without a suffix"


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
