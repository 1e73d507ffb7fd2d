"""Finds image files in folders and uncompressed tars, and counts the files that it leaves out."""

import functools
import glob
import io
import itertools
import os
import re
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, BinaryIO, NamedTuple

from PIL import Image

from lambdanets.data.images import FORMATS
from lambdanets.errors import InputError, first_few, one_line
from lambdanets.files import is_hidden, is_output, nfc, open_regular

_PADDING = 2**20  # bytes after the end-of-archive block that must be zero; GNU tar writes up to 10,240


class TarMember(NamedTuple):
    """A file in a tar: the path of the tar and its name in it, what opens the tar, its offset and length in bytes."""

    name: str
    open_tar: Callable[[], BinaryIO]
    start: int
    length: int

    def __str__(self) -> str:
        return self.name

    def open(self) -> BinaryIO:
        """Open a copy of the file in memory. Raises OSError."""
        with self.open_tar() as tar:  # for each file, since forked workers would share its position
            tar.seek(self.start)
            return io.BytesIO(tar.read(self.length))


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
    out, by reason. Raises InputError for an incomplete or invalid tar.
    """
    left_out = Counter[str]()
    files: list[tuple[PurePath, Path | TarMember]]
    found = _walk(source, left_out) if source.is_dir() else _tar_members(source, left_out)
    files = sorted(found, key=lambda file: ([*map(nfc, file[0].parts)], file[0].parts))  # as on any system
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


def iterate_tar(
    file: Any, left_out: Counter[str] | None = None, start: int = 0, folder: str = ""
) -> Iterator[tuple[str, int, int]]:
    """Yield name, offset and length of each file in an uncompressed tar and its nested tars, from the headers.

    file: the tar, a binary file. left_out: counts symbolic links, which are skipped. start, folder: the offset of a
    nested tar, and what its names begin with.

    Hidden files are left out. Raises tarfile.TarError if the tar is incomplete. A missing end-of-archive block is an
    error, because the tar may be truncated between two members; GNU tar, tarfile and webdataset all write this block.
    Data after the block is also an error, because readers would ignore it.
    """
    spans: dict[str, tuple[int, int]] = {}
    with tarfile.open(fileobj=file, mode="r:") as tar:
        while (member := tar.next()) is not None:
            hidden = any(map(is_hidden, PurePosixPath(member.name).parts))
            if member.issym() and left_out is not None and not hidden:
                left_out["as a link (write the tar with --dereference)"] += 1
            if member.islnk() and member.linkname in spans:  # GNU tar writes a file with two names once
                member.offset_data, member.size = spans[member.linkname]
            elif not member.isreg():
                continue
            spans[member.name] = member.offset_data, member.size
            if hidden:
                continue
            name, offset = folder + member.name, start + member.offset_data
            if name.lower().endswith(".tar"):
                yield from iterate_tar(tar.extractfile(member), left_out, offset, f"{name}/")
            else:
                yield name, offset, member.size
        file.seek(tar.offset)  # where tarfile stops, without an error also at a truncated or damaged header
        trailer = file.read(tarfile.BLOCKSIZE + _PADDING)
    if len(trailer) < tarfile.BLOCKSIZE or trailer.strip(b"\0"):
        advice = "; copy it again, or append 1,024 zero bytes if it is complete" if not trailer else ""
        raise tarfile.ReadError(f"it is truncated, damaged or followed by another tar at byte {tar.offset}{advice}")


def _tar_members(tar: Path, left_out: Counter[str]) -> list[tuple[PurePath, TarMember]]:
    """Return the files of a tar and its nested tars. A nested tar is a folder, whose name has no suffix."""
    open_tar = functools.partial(open_regular, tar)
    with open_tar() as file:
        try:  # of members with the same name, the last counts
            members = {name: TarMember(f"{tar}/{name}", open_tar, *span) for name, *span in iterate_tar(file, left_out)}
        except (OSError, tarfile.TarError) as error:
            raise InputError(f"{tar} must be a complete, uncompressed tar: {one_line(error)}") from error
    return [(PurePosixPath(re.sub(r"(?i)\.tar/", "/", name)), member) for name, member in members.items()]


def find_images(
    inputs: Sequence[str], accepts: Callable[[str], bool] = is_image_name
) -> tuple[list[Path], Counter[str]]:
    """List the image files of paths and folders (see `list_files`) in the order of the inputs, without duplicates.

    The path of a file may have any suffix, and wildcards, which shells of Windows do not expand. Returns also the
    number of files that are left out, by reason. Raises InputError for an input that is missing or an empty folder, and
    if the inputs have no images.
    """
    paths: dict[str, Path] = {}
    left_out = Counter[str]()
    patterns = {each for each in inputs if re.search("[*?]", each) and not os.path.lexists(each)}
    found = ((sorted(glob.glob(each)) if each in patterns else []) or [each] for each in inputs)  # noqa: PTH207
    inputs = [*itertools.chain.from_iterable(found)]
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
    return [*paths.values()], left_out


def describe_classes(classes: Sequence[str]) -> str:
    """Format the number of classes and the first names, as one line."""
    return f"classes: {len(classes):,} ({first_few(classes)})"


def describe_left_out(left_out: Mapping[str, int]) -> str:
    """Format the number of files that were left out, by reason, as one line."""
    reasons = sorted(left_out.items(), key=lambda entry: (-entry[1], entry[0]))
    return f"left out: {first_few(f'{count:,} {reason}' for reason, count in reasons) or 'no files'}"
