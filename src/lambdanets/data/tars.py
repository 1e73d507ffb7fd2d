"""Files in uncompressed tars, found from the headers of their members."""

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple

from lambdanets.errors import InputError, one_line
from lambdanets.files import is_hidden, open_regular

_PADDING = 2**20  # bytes after the end-of-archive block that must be zero; GNU tar writes up to 10,240


class TarMember(NamedTuple):
    """A file in a tar: its name, and its offset and length in bytes."""

    tar: Path
    name: str
    start: int
    length: int

    def __str__(self) -> str:
        return f"{self.tar}/{self.name}"

    @property
    def suffix(self) -> str:
        """The suffix of the name, as of a Path."""
        return PurePosixPath(self.name).suffix


def tar_members(file: BinaryIO, size: int | None = None) -> Iterator[tarfile.TarInfo]:
    """Yield the regular files of an uncompressed tar, from its headers. Raises tarfile.TarError if it is incomplete.

    The tar starts at the current position of the file and has `size` bytes, by default all up to the end. A missing
    end-of-archive block is an error, because the tar may be truncated between two members; GNU tar, tarfile and
    webdataset all write this block. Data after the block is also an error, because readers would ignore it.
    """
    start = file.tell()
    stop = file.seek(0, io.SEEK_END) if size is None else start + size
    file.seek(start)
    spans: dict[str, tuple[int, int]] = {}
    with tarfile.open(fileobj=file, mode="r:") as tar:
        while (member := tar.next()) is not None:
            if member.islnk() and member.linkname in spans:  # GNU tar writes a file with two names once
                member.offset_data, member.size = spans[member.linkname]
            elif not member.isreg():
                continue
            spans[member.name] = member.offset_data, member.size
            yield member
        file.seek(tar.offset)
    trailer = file.read(max(0, min(stop - tar.offset, tarfile.BLOCKSIZE + _PADDING)))
    if len(trailer) < tarfile.BLOCKSIZE:  # tarfile stops without an error at a truncated or damaged header
        advice = "" if trailer or tar.offset > stop else "; copy it again, or append 1,024 zero bytes if it is complete"
        raise tarfile.ReadError(f"it is truncated after {stop - start} bytes{advice}")
    if trailer.strip(b"\0"):
        raise tarfile.ReadError(f"it is damaged at byte {tar.offset - start}, or followed by another tar")


def files_in_tar(tar: Path) -> list[tuple[PurePosixPath, TarMember]]:
    """Return the files of an uncompressed tar and its nested tars that are not hidden, sorted by path.

    The path of a file in a nested tar begins with the name of this tar without the suffix. Of members with the same
    name, the last counts. Raises InputError for an incomplete or invalid tar.
    """
    with open_regular(tar) as file:
        try:
            files = {name: (path, TarMember(tar, name, *span)) for name, path, span in _iterate_files(file)}
        except (OSError, tarfile.TarError) as error:
            raise InputError(f"{tar} must be a complete, uncompressed tar: {one_line(error)}") from error
    return sorted(files.values())


def _iterate_files(
    file: BinaryIO, size: int | None = None, folder: str = "", below: str = ""
) -> Iterator[tuple[str, PurePosixPath, tuple[int, int]]]:
    """Yield the name of each file, its path, and its offset and length. folder, below: name and path of the tar."""
    for member in tar_members(file, size):
        if any(map(is_hidden, PurePosixPath(member.name).parts)):
            continue
        if member.name.lower().endswith(".tar"):
            file.seek(member.offset_data)
            nested = f"{folder}{member.name}/", f"{below}{member.name[:-4]}/"
            yield from _iterate_files(file, member.size, *nested)
        else:
            yield folder + member.name, PurePosixPath(below + member.name), (member.offset_data, member.size)
