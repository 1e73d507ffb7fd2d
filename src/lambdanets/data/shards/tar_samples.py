"""WebDataset tar files: writing samples, and indexing them from the headers."""

import io
import os
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from lambdanets.data.images import IMAGE_SUFFIXES
from lambdanets.errors import InputError, one_line
from lambdanets.files import atomic_open, file_sha256, open_regular

_PADDING = 2**20  # bytes checked after the end-of-archive block; GNU tar pads with up to 10,240 zero bytes


class Sample(NamedTuple):
    """An image's key, the suffix and content of its file, and its label, None if unlabeled."""

    key: str
    suffix: str
    content: bytes
    label: int | None


@dataclass(frozen=True)
class TarSamples:
    """The images of a tar in order: member names, and offsets int64 (n, 4).

    offsets: start and length of the image, and of its .cls member, length 0 if there is none.
    """

    names: list[str]
    offsets: np.ndarray


def read_tar_samples(file: BinaryIO) -> TarSamples:
    """Index an uncompressed WebDataset tar from its headers.

    Consecutive members with the same path up to the first dot of the file name are one sample; the rest is the suffix.
    Samples without an image are skipped; of several images the first is used. Raises tarfile.TarError for an incomplete
    or invalid tar.
    """
    names: list[str] = []
    offsets: list[tuple[int, int, int, int]] = []
    last_key = ""
    label, has_image = (0, 0), False  # of the sample with that key
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
        elif f".{suffix}" in IMAGE_SUFFIXES and not has_image:
            names.append(member.name)
            offsets.append((member.offset_data, member.size, *label))
            has_image = True
    return TarSamples(names, np.array(offsets, np.int64).reshape(-1, 4))


def tar_members(file: BinaryIO, size: int | None = None) -> Iterator[tarfile.TarInfo]:
    """The regular files of an uncompressed tar, from its headers. Raises tarfile.TarError for an incomplete one.

    The tar starts at the file's position and has `size` bytes, or extends to the end. A missing end-of-archive block is
    an error, as the tar may be truncated between two members; GNU tar, tarfile and webdataset all write the block. So
    is data after it, such as of concatenated tars: readers would stop at the first end.
    """
    start = file.tell()
    stop = file.seek(0, io.SEEK_END) if size is None else start + size
    file.seek(start)
    with tarfile.open(fileobj=file, mode="r:") as tar:
        while (member := tar.next()) is not None:
            if member.isreg():
                yield member
        file.seek(tar.offset)
    rest = file.read(max(0, min(stop - tar.offset, tarfile.BLOCKSIZE + _PADDING)))
    if len(rest) < tarfile.BLOCKSIZE:  # tarfile takes a truncated or damaged header for the end
        advice = (
            "" if rest or tar.offset > stop else "; copy it again, or append 1,024 zero bytes if no member is missing"
        )
        raise tarfile.ReadError(f"it is truncated after {stop - start} bytes{advice}")
    if rest[: tarfile.BLOCKSIZE].strip(b"\0"):
        raise tarfile.ReadError(f"it is damaged at byte {tar.offset - start}")
    if rest.strip(b"\0"):
        raise tarfile.ReadError("it has data after its end, such as of concatenated tars; pass each tar on its own")


def parse_class(content: bytes) -> int | None:
    """The class index in a .cls member, None if it is invalid."""
    text = content.strip()
    return int(text) if text.isdigit() and len(text) < 10 else None


def names_in_tar(path: Path) -> list[str]:
    """The names of all files in an uncompressed tar and in tars inside it.

    Raises InputError for an incomplete or invalid tar.
    """
    try:
        with open_regular(path) as file:
            return list(_names_in(file))
    except (OSError, tarfile.TarError) as error:
        raise InputError(f"{path} must be a complete, uncompressed tar: {one_line(error)}") from error


def _names_in(file: BinaryIO, size: int | None = None) -> Iterator[str]:
    for member in tar_members(file, size):
        yield member.name
        if member.name.lower().endswith(".tar"):
            file.seek(member.offset_data)
            yield from _names_in(file, member.size)


def split_name(name: str) -> tuple[str, str]:
    """A member's key and its lower-case suffix: the path before and after the first dot of the file name.

    Both are empty for files that belong to no sample: hidden, or without a dot.
    """
    folder, slash, base = name.rpartition("/")
    stem, dot, suffix = base.partition(".")
    return (f"{folder}{slash}{stem}", suffix.lower()) if stem and dot else ("", "")


def write_tar_samples(path: Path, samples: Iterable[Sample]) -> tuple[int, int, str]:
    """Write samples into a tar atomically; returns their number, the tar's size in bytes and its SHA-256.

    The tar is read back, and each sample compared, before it gets its final name. Raises InputError if they differ.
    """
    written = []
    with atomic_open(path) as file:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for key, suffix, content, label in samples:
                label_content = b"" if label is None else str(label).encode()
                _add(tar, key + suffix, content)
                if label_content:
                    _add(tar, f"{key}.cls", label_content)
                written.append((key + suffix, zlib.crc32(content), label_content))
        file.flush()
        with Path(file.name).open("rb") as again:
            if _contents(again) != written:
                raise InputError(f"{path} differs after it was written; check the disk, then run the command again")
            return len(written), again.seek(0, io.SEEK_END), file_sha256(again)


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)  # without owner and time, so that the same data gives the same bytes
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def _contents(file: BinaryIO) -> list[tuple[str, int, bytes]]:
    """Member name, CRC-32 of the image and .cls content of each sample."""
    samples = read_tar_samples(file)
    contents = []
    for name, (start, length, label_start, label_length) in zip(samples.names, samples.offsets.tolist(), strict=True):
        image = os.pread(file.fileno(), length, start)
        contents.append((name, zlib.crc32(image), os.pread(file.fileno(), label_length, label_start)))
    return contents
