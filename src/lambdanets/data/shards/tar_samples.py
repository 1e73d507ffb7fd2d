"""Tars in WebDataset's convention: writing their samples, and finding where those lie without reading them."""

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
from lambdanets.files import atomic_open, open_regular, sha256_of

_PADDING = 2**20  # bytes looked at behind the end-of-archive block; GNU tar writes up to 10,240 bytes of zeros there


class Sample(NamedTuple):
    """An image's key, the suffix and content of its file, and its class number, or None where it has none."""

    key: str
    suffix: str
    content: bytes
    label: int | None


@dataclass(frozen=True)
class TarSamples:
    """The images of a tar in order: their members' names, and their places int64 (n, 4).

    A place is the image's first byte and length, and those of its class, length 0 where it has none.
    """

    names: list[str]
    places: np.ndarray


def read_tar_samples(file: BinaryIO) -> TarSamples:
    """Index an uncompressed tar in WebDataset's convention from its headers.

    Consecutive members whose names are alike up to the first dot of the last part are one sample; the suffix is what
    follows. A sample without an image is passed over; of several images the first counts. Raises tarfile.TarError for
    anything but a whole tar.
    """
    names: list[str] = []
    places: list[tuple[int, int, int, int]] = []
    last_key = ""
    label, image_here = (0, 0), False  # of the sample with that key
    for member in tar_members(file):
        key, suffix = split_name(member.name)
        if not key:
            continue
        if key != last_key:
            last_key, label, image_here = key, (0, 0), False
        if suffix == "cls":
            label = (member.offset_data, member.size)
            if image_here:
                places[-1] = (*places[-1][:2], *label)
        elif f".{suffix}" in IMAGE_SUFFIXES and not image_here:
            names.append(member.name)
            places.append((member.offset_data, member.size, *label))
            image_here = True
    return TarSamples(names, np.array(places, np.int64).reshape(-1, 4))


def tar_members(file: BinaryIO, size: int | None = None) -> Iterator[tarfile.TarInfo]:
    """The regular files of an uncompressed tar, from its headers. Raises tarfile.TarError for anything but a whole tar.

    The tar begins at the file's position and has `size` bytes, or all that follow. One without an end-of-archive block
    is refused, as it may have been cut between two members; GNU tar, tarfile and webdataset all write that block. So is
    one that goes on after it, such as several tars joined by cat: readers would stop at the first end.
    """
    begin = file.tell()
    stop = file.seek(0, io.SEEK_END) if size is None else begin + size
    file.seek(begin)
    with tarfile.open(fileobj=file, mode="r:") as tar:
        while (member := tar.next()) is not None:
            if member.isreg():
                yield member
        file.seek(tar.offset)
    rest = file.read(max(0, min(stop - tar.offset, tarfile.BLOCKSIZE + _PADDING)))
    if len(rest) < tarfile.BLOCKSIZE:  # tarfile takes a header that is cut or damaged for the end
        advice = (
            "" if rest or tar.offset > stop else "; copy it again, or append 1,024 zero bytes if no member is missing"
        )
        raise tarfile.ReadError(f"it is cut off after {stop - begin} bytes{advice}")
    if rest[: tarfile.BLOCKSIZE].strip(b"\0"):
        raise tarfile.ReadError(f"it is damaged at byte {tar.offset - begin}")
    if rest.strip(b"\0"):
        raise tarfile.ReadError("it goes on after its end, as if several tars were joined; give each on its own")


def class_number(content: bytes) -> int | None:
    """The class number that the content of a .cls member is, or None where it is none."""
    text = content.strip()
    return int(text) if text.isdigit() and len(text) < 10 else None


def names_in_tar(path: Path) -> list[str]:
    """The names of the files in an uncompressed tar, and of those in tars within it.

    Raises InputError for anything but a whole tar, so that what a reader takes for the end of one is its end.
    """
    try:
        with open_regular(path) as file:
            return list(_names_in(file))
    except (OSError, tarfile.TarError) as error:
        raise InputError(f"'{path}' must be a whole, uncompressed tar, but: {one_line(error)}") from error


def _names_in(file: BinaryIO, size: int | None = None) -> Iterator[str]:
    for member in tar_members(file, size):
        yield member.name
        if member.name.lower().endswith(".tar"):
            file.seek(member.offset_data)
            yield from _names_in(file, member.size)


def split_name(name: str) -> tuple[str, str]:
    """A member's key and its suffix in lower case: what stands before and after the first dot of the last part.

    Both are empty for names that are no sample's: without a dot, or hidden.
    """
    folder, slash, base = name.rpartition("/")
    stem, dot, suffix = base.partition(".")
    return (f"{folder}{slash}{stem}", suffix.lower()) if stem and dot else ("", "")


def write_tar_samples(path: Path, samples: Iterable[Sample]) -> tuple[int, int, str]:
    """Write samples into a tar that is there whole or not at all; their number, the tar's bytes and its SHA-256.

    Before the tar gets its name it is read again and each sample compared with what was written. Raises InputError
    where they differ.
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
                raise InputError(f"{path} reads otherwise than written; check the disk, then run the command again")
            return len(written), again.seek(0, io.SEEK_END), sha256_of(again)


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)  # without owner and time: the same set gives the same bytes
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def _contents(file: BinaryIO) -> list[tuple[str, int, bytes]]:
    """Each sample's member, the checksum of its image and its class."""
    samples = read_tar_samples(file)
    contents = []
    for name, (start, length, label_start, label_length) in zip(samples.names, samples.places.tolist(), strict=True):
        image = os.pread(file.fileno(), length, start)
        contents.append((name, zlib.crc32(image), os.pread(file.fileno(), label_length, label_start)))
    return contents
