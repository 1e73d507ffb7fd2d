"""Files in uncompressed tars, found from the headers of their members."""

import io
import re
import tarfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple

from lambdanets.errors import InputError, one_line
from lambdanets.files import is_hidden, open_regular

_LINK = " as a link; write the tar with --dereference"  # end of the name of a symbolic link, so that it is left out
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


def iterate_tar(file: Any, start: int = 0, folder: str = "") -> Iterator[tuple[str, int, int]]:
    """Yield name, offset and length of each file in an uncompressed tar and its nested tars, from the headers.

    file: the tar, a binary file. start, folder: the offset of a nested tar, and what its names begin with.

    Hidden files are left out; names of symbolic links end in _LINK. Raises tarfile.TarError if the tar is incomplete. A
    missing end-of-archive block is an error, because the tar may be truncated between two members; GNU tar, tarfile and
    webdataset all write this block. Data after the block is also an error, because readers would ignore it.
    """
    spans: dict[str, tuple[int, int]] = {}
    with tarfile.open(fileobj=file, mode="r:") as tar:
        while (member := tar.next()) is not None:
            if member.islnk() and member.linkname in spans:  # GNU tar writes a file with two names once
                member.offset_data, member.size = spans[member.linkname]
            elif member.issym():
                member.name += _LINK
            elif not member.isreg():
                continue
            spans[member.name] = member.offset_data, member.size
            if any(map(is_hidden, PurePosixPath(member.name).parts)):
                continue
            name, offset = folder + member.name, start + member.offset_data
            if name.lower().endswith(".tar"):
                yield from iterate_tar(tar.extractfile(member), offset, f"{name}/")
            else:
                yield name, offset, member.size
        file.seek(tar.offset)  # where tarfile stops, without an error also at a truncated or damaged header
        trailer = file.read(tarfile.BLOCKSIZE + _PADDING)
    if len(trailer) < tarfile.BLOCKSIZE or trailer.strip(b"\0"):
        advice = "; copy it again, or append 1,024 zero bytes if it is complete" if not trailer else ""
        raise tarfile.ReadError(f"it is truncated, damaged or followed by another tar at byte {tar.offset}{advice}")


def files_in_tar(tar: Path) -> list[tuple[PurePosixPath, TarMember]]:
    """Return path and position of the files of an uncompressed tar and its nested tars, sorted by path.

    A nested tar is a folder, whose name has no suffix. Of members with the same name, the last counts. Raises
    InputError for an incomplete or invalid tar.
    """
    open_tar = partial(open_regular, tar)
    with open_tar() as file:
        try:
            members = {name: TarMember(f"{tar}/{name}", open_tar, *span) for name, *span in iterate_tar(file)}
        except (OSError, tarfile.TarError) as error:
            raise InputError(f"{tar} must be a complete, uncompressed tar: {one_line(error)}") from error
    return sorted((PurePosixPath(re.sub(r"(?i)\.tar/", "/", name)), member) for name, member in members.items())
