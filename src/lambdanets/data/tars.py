"""Images in uncompressed tars, found from the headers of their members: folders of classes, and WebDataset samples."""

import io
import os
import tarfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import numpy as np

from lambdanets.data.image_folders import TEST, TRAIN, VALIDATION, ImageSet, find_splits, parse_name
from lambdanets.data.image_search import describe_suffix, image_suffixes, is_image_name
from lambdanets.data.images import read_file
from lambdanets.data.labeled_images import LabeledImages
from lambdanets.errors import InputError, one_line
from lambdanets.files import is_hidden, open_regular

# path; name, offset and length in bytes
FileInTar = tuple[PurePosixPath, tuple[str, int, int]]
_PADDING = 2**20  # bytes after the end-of-archive block that must be zero; GNU tar writes up to 10,240


def tar_members(file: BinaryIO, size: int | None = None) -> Iterator[tarfile.TarInfo]:
    """Yield the regular files of an uncompressed tar, from its headers. Raises tarfile.TarError if it is incomplete.

    The tar starts at the current position of the file and has `size` bytes, by default all up to the end. A missing
    end-of-archive block is an error, because the tar may be truncated between two members; GNU tar, tarfile and
    webdataset all write this block. Data after the block is also an error, because readers would ignore it.
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
        advice = "" if trailer or tar.offset > stop else "; copy it again, or append 1,024 zero bytes if it is complete"
        raise tarfile.ReadError(f"it is truncated after {stop - start} bytes{advice}")
    if trailer.strip(b"\0"):
        raise tarfile.ReadError(f"it is damaged at byte {tar.offset - start}, or followed by another tar")


def read_tar_samples(file: BinaryIO) -> tuple[list[str], np.ndarray, list[bytes]]:
    """Find the images of a WebDataset tar: their names, their starts and lengths, int64 (n, 2), and .cls members.

    A .cls member that is missing is b"".
    Consecutive members with the same path up to the first dot of the file name are one sample. Samples without an image
    are skipped; if a sample has several images, the first is used. Raises tarfile.TarError for an incomplete or invalid
    tar.
    """
    names: list[str] = []
    spans: list[tuple[int, int]] = []
    classes: list[bytes] = []
    last_key = ""
    label, has_image = b"", False  # of the current sample
    for member in tar_members(file):
        key, suffix = split_name(member.name)
        if not key:
            continue
        if key != last_key:
            last_key, label, has_image = key, b"", False
        if suffix == "cls":
            file.seek(member.offset_data)
            label = file.read(member.size)
            if has_image:
                classes[-1] = label
        elif f".{suffix}" in image_suffixes() and not has_image:
            names.append(member.name)
            spans.append((member.offset_data, member.size))
            classes.append(label)
            has_image = True
    return names, np.array(spans, np.int64).reshape(-1, 2), classes


class TarSamples:
    """The images of an open WebDataset tar.

    path: for messages. count: the expected number of images. Raises tarfile.TarError for another number, and for an
    incomplete or invalid tar.
    """

    def __init__(self, path: str, file: BinaryIO, count: int) -> None:
        self._path, self._file = path, file
        self.names, self._spans, self.classes = read_tar_samples(file)
        if len(self.names) != count:
            raise tarfile.ReadError(f"it has {len(self.names)} images, not {count} as in shards.json")

    def __del__(self) -> None:
        self._file.close()

    def name(self, position: int) -> str:
        return f"{self._path}/{self.names[position]}"

    def image(self, position: int) -> bytes:
        start, length = self._spans[position].tolist()
        if hasattr(os, "pread"):  # forked workers share the position of the file
            return os.pread(self._file.fileno(), length, start)
        self._file.seek(start)  # on Windows, where no process is forked
        return self._file.read(length)


def split_name(name: str) -> tuple[str, str]:
    """Split a member name at the first dot of the file name into the key and the lower-case suffix.

    Both are empty for hidden files and files without a dot, which do not belong to a sample.
    """
    folder, slash, base = name.rpartition("/")
    stem, dot, suffix = base.partition(".")
    return (f"{folder}{slash}{stem}", suffix.lower()) if stem and dot else ("", "")


@dataclass(frozen=True)
class TarImages(LabeledImages):
    """Images in one tar file. members: name, offset and length in bytes of each image.

    The file is opened for each image, because forked workers would share the position of an open file.
    """

    path: Path
    members: Sequence[tuple[str, int, int]]
    labels: Sequence[int]

    def file(self, index: int) -> tuple[bytes, str]:
        name, start, length = self.members[index]
        return read_file(self.path, start, length), Path(name).suffix.lower()

    def name(self, index: int) -> str:
        return f"{self.path}/{self.members[index][0]}"


def find_validation_tar(train: Path) -> Path | None:
    """Find the tar of the validation set in the folder of the training tar, by their names; None if there is none.

    A tar with the name of a validation or test split has none.
    """
    role, rest = parse_name(train.stem)
    if role in (VALIDATION, TEST):
        return None
    rest = rest if role == TRAIN else ()
    # macOS makes files such as ._val.tar
    files = sorted(file for file in train.parent.iterdir() if not is_hidden(file.name))
    tars = {file: parse_name(file.stem) for file in files if file.suffix.lower() == ".tar"}
    found = [tar for wanted in (VALIDATION, TEST) for tar, name in tars.items() if name == (wanted, rest)]
    return next(filter(Path.is_file, found), None)


def open_tar(path: Path) -> tuple[ImageSet, ImageSet | None]:
    """Open the training and the validation set in an uncompressed tar.

    Nested tars count as folders. Raises InputError, also if any of the tars is compressed, damaged or truncated.
    """
    files = files_in_tar(path)
    left_out = Counter(describe_suffix(inside) for inside, _ in files if not is_image_name(inside.name))
    images = [file for file in files if is_image_name(file[0].name)]
    return find_splits(str(path), images, left_out, partial(TarImages, path))


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
        else:
            yield folder + member.name, below + member.name, (member.offset_data, member.size)
