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
    which have figures of images.
    """
    found = FoundImages([])
    for parent, folders, names in _walk(folder):
        relative = parent.relative_to(folder)
        if parent != folder and is_output({*folders, *names}):
            images = [below / name for below, _, inside in _walk(parent) for name in inside if accepts(name)]
            found.reasons.update(dict.fromkeys(images, _describe_output(relative)))
            folders.clear()
            continue
        if parent != folder and not folders and not names:
            found.reasons[parent] = f"empty folder '{relative}'"
        for path in map(parent.joinpath, names):
            if accepts(path.name):
                found.paths.append(path)
            else:
                found.reasons[path] = describe_suffix(path)
    found.paths.sort()
    return found


def _walk(folder: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Yield each folder that is not hidden, with the names of its sub-folders and files, without hidden ones.

    The sub-folders may be cleared. A folder is yielded under each link to it, but not within itself.
    """

    def fail(error: OSError) -> None:
        raise error

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

    The result is in the order of the inputs. The path of a file may have any suffix. In folders and globs, only files
    whose names are accepted are found, sorted by path, and none in output folders of this package. Raises InputError
    for an input that matches nothing, and if the inputs have no images.
    """
    paths: dict[str, Path] = {}
    reasons: dict[Path, str] = {}
    for pattern in inputs:
        found = _find_matches(pattern, accepts)
        if not found.paths and not found.reasons:
            raise InputError(f"'{pattern}' must be an image, a folder of images or a glob, and matches nothing")
        for path in found.paths:
            paths.setdefault(str(path.absolute()), path)
        reasons |= found.reasons
    if inputs and not paths:
        left_out = _format(Counter(reasons.values()))
        raise InputError(
            f"'{first_few(inputs)}' must be an image, a folder of images or a glob, and has none ({left_out})"
        )
    return FoundImages([*paths.values()], reasons)


def _find_matches(pattern: str, accepts: Callable[[str], bool]) -> FoundImages:
    path, found = Path(pattern), FoundImages([])
    if path.exists() and not path.is_dir():  # true also for named pipes, which are later reported as unreadable
        return FoundImages([path])
    is_output_folder = functools.cache(lambda folder: is_output({inside.name for inside in folder.iterdir()}))
    real_path = functools.cache(os.path.realpath)
    num_fixed = next((i for i, part in enumerate(path.parts) if glob.has_magic(part)), len(path.parts))
    matches = [path] if path.is_dir() else sorted(map(Path, glob.glob(pattern, recursive=True)))  # noqa: PTH207 - Path.glob takes no absolute patterns
    for match in matches:
        if any(map(is_hidden, match.parts[num_fixed:])):
            continue
        folders = [each for each in (match, *match.parents) if len(each.parts) >= num_fixed and each.is_dir()]
        if len(set(map(real_path, folders))) < len(folders):  # a symbolic link to a parent
            continue
        output = next(filter(is_output_folder, reversed(folders)), None)
        if match.is_dir():
            below = list_images(match, accepts)
        else:
            below = FoundImages([match]) if accepts(match.name) else FoundImages([], {match: describe_suffix(match)})
        if output is not None:
            below = FoundImages([], dict.fromkeys(below.paths, _describe_output(output)))
        found.paths.extend(below.paths)
        found.reasons.update(below.reasons)
    return found


def describe_suffix(path: PurePath) -> str:
    """Describe why a file that is not an image is left out."""
    return path.suffix.lower() or "without a suffix"


def _describe_output(folder: PurePath) -> str:
    """Describe why images in an output folder of this package are left out."""
    return f"in {folder}, the output of a command"


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
