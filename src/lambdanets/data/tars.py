"""Files in uncompressed tars, found from the headers of their members."""

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple

from lambdanets.errors import InputError, one_line
from lambdanets.files import is_hidden, open_regular

_MAX_TRAILER = 2**20  # bytes at the end of a tar that must be zero; GNU tar writes up to 10,240


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

    The tar starts at the current position of the file and has `size` bytes, by default all up to the end. tarfile stops
    without an error at a truncated or damaged header, so only the end-of-archive block may follow the last member; GNU
    tar, tarfile and webdataset all write it.
    """
    start = file.tell()
    stop = file.seek(0, io.SEEK_END) if size is None else start + size
    file.seek(start)
    with tarfile.open(fileobj=file, mode="r:") as tar:
        while (member := tar.next()) is not None:
            if member.isreg():
                yield member
        file.seek(tar.offset)
    trailer = file.read(max(0, min(stop - tar.offset, _MAX_TRAILER)))
    if len(trailer) < tarfile.BLOCKSIZE:
        raise tarfile.ReadError(f"it is truncated after {stop - start} bytes; copy it again")
    if trailer.strip(b"\0"):
        raise tarfile.ReadError(f"it is damaged at byte {tar.offset - start}, or followed by another tar")


def files_in_tar(tar: Path) -> list[tuple[PurePosixPath, TarMember]]:
    """Return the files of an uncompressed tar and its nested tars that are not hidden, sorted by path.

    The path of a file in a nested tar begins with the name of this tar without the suffix. Of members with the same
    name, the last counts. Raises InputError for an incomplete or invalid tar.
    """
    try:
        with open_regular(tar) as file:
            files = {name: (path, TarMember(tar, name, *span)) for name, path, span in _iterate_files(file)}
    except (OSError, tarfile.TarError) as error:
        raise InputError(f"{tar} must be a complete, uncompressed tar: {one_line(error)}") from error
    return sorted(files.values())


def _iterate_files(
    file: BinaryIO, size: int | None = None, folder: str = "", below: PurePosixPath | None = None
) -> Iterator[tuple[str, PurePosixPath, tuple[int, int]]]:
    """Yield the name of each file, its path, and its offset and length. folder, below: name and path of the tar."""
    for member in tar_members(file, size):
        name, path = folder + member.name, PurePosixPath(below or "", member.name)
        if any(map(is_hidden, PurePosixPath(member.name).parts)):
            continue
        if path.suffix.lower() == ".tar":
            file.seek(member.offset_data)
            yield from _iterate_files(file, member.size, f"{name}/", path.with_suffix(""))
        else:
            yield name, path, (member.offset_data, member.size)
