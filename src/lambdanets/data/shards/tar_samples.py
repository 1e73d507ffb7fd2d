"""Writes WebDataset tar files, and finds the samples in them from the tar headers."""

import io
import os
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple

import numpy as np

from lambdanets.data.image_search import image_suffixes
from lambdanets.errors import InputError, one_line
from lambdanets.files import atomic_open, file_sha256, open_regular
from lambdanets.folders import is_hidden

# path; name, offset and length in bytes
FileInTar = tuple[PurePosixPath, tuple[str, int, int]]
_PADDING = 2**20  # bytes after the end-of-archive block that must be zero; GNU tar writes up to 10,240


class Sample(NamedTuple):
    """The WebDataset key of an image, the suffix and content of its file, and its label (None if unlabeled)."""

    key: str
    suffix: str
    content: bytes
    label: int | None


@dataclass(frozen=True)
class TarSamples:
    """The images of a tar, in order.

    names: of the members.
    offsets: int64 (n, 4), start and length of the image, and of its .cls member, which has length 0 if it is missing.
    """

    names: list[str]
    offsets: np.ndarray


def read_tar_samples(file: BinaryIO) -> TarSamples:
    """Find the samples of an uncompressed WebDataset tar from its headers.

    Consecutive members with the same path up to the first dot of the file name are one sample. Samples without an image
    are skipped; if a sample has several images, the first is used. Raises tarfile.TarError for an incomplete or invalid
    tar.
    """
    names: list[str] = []
    offsets: list[tuple[int, int, int, int]] = []
    last_key = ""
    label, has_image = (0, 0), False  # of the current sample
    for member in tar_members(file):
        key, suffix = split_name(member.name)
        if not key:
            continue
        if key != last_key:
            last_key, label, has_image = key, (0, 0), False
        if suffix == "cls":
            label = (member.offset_data, member.size)
            if has_image:
                offsets[-1] = (*offsets[-1][:2], *label)
        elif f".{suffix}" in image_suffixes() and not has_image:
            names.append(member.name)
            offsets.append((member.offset_data, member.size, *label))
            has_image = True
    return TarSamples(names, np.array(offsets, np.int64).reshape(-1, 4))


def tar_members(file: BinaryIO, size: int | None = None) -> Iterator[tarfile.TarInfo]:
    """Yield the regular files of an uncompressed tar, from its headers. Raises tarfile.TarError if it is incomplete.

    The tar starts at the current position of the file and has `size` bytes, by default all up to the end. A missing
    end-of-archive block is an error, because the tar may be truncated between two members; GNU tar, tarfile and
    webdataset all write this block. Data after the block is also an error, because readers would ignore it; it may be
    another, concatenated tar.
    """
    start = file.tell()
    stop = file.seek(0, io.SEEK_END) if size is None else start + size
    file.seek(start)
    with tarfile.open(fileobj=file, mode="r:") as tar:
        while (member := tar.next()) is not None:
            if member.isreg():
                yield member
        file.seek(tar.offset)
    trailer = file.read(max(0, min(stop - tar.offset, tarfile.BLOCKSIZE + _PADDING)))
    if len(trailer) < tarfile.BLOCKSIZE:  # tarfile stops without an error at a truncated or damaged header
        is_truncated = trailer or tar.offset > stop
        advice = "" if is_truncated else "; copy it again, or append 1,024 zero bytes if no member is missing"
        raise tarfile.ReadError(f"it is truncated after {stop - start} bytes{advice}")
    if trailer[: tarfile.BLOCKSIZE].strip(b"\0"):
        raise tarfile.ReadError(f"it is damaged at byte {tar.offset - start}")
    if trailer.strip(b"\0"):
        raise tarfile.ReadError("it has data after its end, such as of concatenated tars; pass each tar on its own")


def parse_class(content: bytes) -> int | None:
    """Parse the class index in a .cls member; None if it is invalid."""
    text = content.strip()
    return int(text) if text.isdigit() and len(text) < 10 else None


def files_in_tar(path: Path) -> list[FileInTar]:
    """Return the files of an uncompressed tar and its nested tars that are not hidden, sorted by path.

    The path of a file in a nested tar begins with the name of this tar without the suffix. Of members with the same
    name, the last counts. Raises InputError for an incomplete or invalid tar.
    """
    try:
        with open_regular(path) as file:
            files = {name: ((PurePosixPath(parts), (name, *span))) for name, parts, span in _iterate_files(file)}
    except (OSError, tarfile.TarError) as error:
        raise InputError(f"{path} must be a complete, uncompressed tar: {one_line(error)}") from error
    return sorted(files.values())


def _iterate_files(
    file: BinaryIO, size: int | None = None, folder: str = "", below: str = ""
) -> Iterator[tuple[str, str, tuple[int, int]]]:
    """Yield the name of each file, its path, and its offset and length. folder, below: name and path of the tar."""
    for member in tar_members(file, size):
        if any(map(is_hidden, PurePosixPath(member.name).parts)):
            continue
        if member.name.lower().endswith(".tar"):
            file.seek(member.offset_data)
            nested = f"{folder}{member.name}/", f"{below}{member.name[:-4]}/"
            yield from _iterate_files(file, member.size, *nested)
        elif not member.issparse():
            yield folder + member.name, below + member.name, (member.offset_data, member.size)


def split_name(name: str) -> tuple[str, str]:
    """Split a member name at the first dot of the file name into the key and the lower-case suffix.

    Both are empty for hidden files and files without a dot, which do not belong to a sample.
    """
    folder, slash, base = name.rpartition("/")
    stem, dot, suffix = base.partition(".")
    return (f"{folder}{slash}{stem}", suffix.lower()) if stem and dot else ("", "")


def write_tar_samples(path: Path, samples: Iterable[Sample]) -> tuple[int, int, str]:
    """Write a tar of samples atomically; returns the number of samples, the size in bytes and the SHA-256.

    The tar is read and compared with the samples before it is renamed to `path`. Raises InputError if it differs.
    """
    written = []
    with atomic_open(path) as file:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for key, suffix, content, label in samples:
                label_content = b"" if label is None else str(label).encode()
                _add_member(tar, key + suffix, content)
                if label_content:
                    _add_member(tar, f"{key}.cls", label_content)
                written.append((key + suffix, zlib.crc32(content), label_content))
        file.flush()
        with Path(file.name).open("rb") as tar_file:
            if _summarize(tar_file) != written:
                raise InputError(f"{path} differs after it was written; check the disk, then run the command again")
            return len(written), tar_file.seek(0, io.SEEK_END), file_sha256(tar_file)


def _add_member(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)  # without owner and time, so that the same samples give the same tar
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def _summarize(file: BinaryIO) -> list[tuple[str, int, bytes]]:
    """Return the member name, the CRC-32 of the image and the .cls content of each sample in a tar."""
    samples = read_tar_samples(file)
    summary = []
    for name, (start, length, label_start, label_length) in zip(samples.names, samples.offsets.tolist(), strict=True):
        image = os.pread(file.fileno(), length, start)
        summary.append((name, zlib.crc32(image), os.pread(file.fileno(), label_length, label_start)))
    return summary
