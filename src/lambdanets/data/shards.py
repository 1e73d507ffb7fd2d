"""Random access to images in WebDataset shards: tars that are listed in shards.json."""

import hashlib
import importlib
import itertools
import math
import operator
import os
import tarfile
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Annotated, Any, BinaryIO

import numpy as np
from pydantic import Field

from lambdanets.data.image_search import image_suffixes
from lambdanets.data.images import UnreadableImage, describe_error
from lambdanets.data.labeled_images import LabeledImages
from lambdanets.data.order import WINDOW
from lambdanets.data.tars import tar_members
from lambdanets.errors import InputError
from lambdanets.files import open_regular
from lambdanets.records import parse_json

SHARD_LIST = "shards.json"
REMOTE_STORE = "lambdanets_lab.remote"  # module with `RemoteStore`, a `Store` at a URL
UNLABELED = -1
_RETRY_SECONDS = 300.0  # after which an unreadable shard is opened again
_MAX_OPEN = 2 * WINDOW  # shards; two windows, because workers do not finish a window at the same time
_Count = Annotated[int, Field(ge=0, lt=2**50)]  # sums of such numbers fit into int64


@dataclass(frozen=True)
class Shard:
    """A tar file: name, number of images, size in bytes, and SHA-256 in hexadecimal digits."""

    name: Annotated[str, Field(pattern="^[^/]*[^/.][^/]*$")]  # without a folder
    images: _Count
    bytes: _Count
    sha256: Annotated[str, Field(pattern="^[0-9a-fA-F]{64}$")]


@dataclass(frozen=True)
class ShardList:
    """The content of shards.json.

    classes: class names; empty for unlabeled images.
    splits: the shards of each split, "train" and optionally "validation".
    metadata: the options with which the shards were written, and the messages about unreadable images.
    """

    classes: tuple[str, ...]
    splits: dict[Annotated[str, Field(pattern="^(train|validation)$")], tuple[Shard, ...]]
    metadata: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.splits.get("train"):
            raise InputError("splits must have shards of 'train', got none")

    @property
    def shards(self) -> list[Shard]:
        """The shards of all splits."""
        return [shard for shards in self.splits.values() for shard in shards]


class Store:
    """The files of shards in a folder."""

    def __init__(self, location: str) -> None:
        self._location = location.rstrip("/")

    def path(self, name: str) -> str:
        """The path or URL of a file."""
        return f"{self._location}/{name}"

    def read_list(self) -> bytes:
        """Read shards.json. Raises OSError."""
        with open_regular(self.path(SHARD_LIST)) as file:
            return file.read()

    def open(self, shard: Shard) -> BinaryIO:
        """Open a shard as a local file. Raises OSError."""
        file = open_regular(self.path(shard.name))
        if (size := os.fstat(file.fileno()).st_size) != shard.bytes:
            file.close()
            raise OSError(f"it has {size} bytes, not {shard.bytes} as in {SHARD_LIST}")
        return file


def open_store(location: str) -> tuple[Store, ShardList]:
    """Open a folder or URL, and read its shards.json. Raises InputError if it cannot be read, or is invalid."""
    store = importlib.import_module(REMOTE_STORE).RemoteStore(location) if is_url(location) else Store(location)
    path = store.path(SHARD_LIST)
    try:
        content = store.read_list()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {describe_error(error, path)}") from error
    return store, parse_json(content, ShardList, f"{path} is not a valid {SHARD_LIST}")


def is_url(location: str) -> bool:
    """Whether a location is a URL and not a path."""
    scheme, separator, _ = location.partition("://")
    return bool(separator) and scheme.replace("+", "").isalnum()


def open_shards(location: str) -> dict[str, "ShardedImages"]:
    """Return the splits ("train", and "validation" if there is one) of shards in a folder or at a URL.

    Only shards.json is read. Raises InputError if there is none, or it is invalid.
    """
    store, content = open_store(location)
    return {
        split: ShardedImages(store, shards, content.classes, f"the {split} shards of '{location}'")
        for split, shards in content.splits.items()
    }


class TarSamples:
    """The images of an open WebDataset tar: their `names`, and their `classes` from .cls members, b"" if missing.

    Consecutive members with the same path up to the first dot of the file name are one sample, of which the first image
    is used. path: of the tar, for messages. Raises tarfile.TarError for an incomplete or invalid tar.
    """

    def __init__(self, path: str, file: BinaryIO) -> None:
        self._path, self._file = path, file
        self.names: list[str] = []
        self.classes: list[bytes] = []
        spans: list[tuple[int, int]] = []
        members = ((*_split_name(member.name), member) for member in tar_members(file))
        for _, sample in itertools.groupby(filter(operator.itemgetter(0), members), operator.itemgetter(0)):
            image, label = None, b""
            for _, suffix, member in sample:
                if suffix == "cls":
                    file.seek(member.offset_data)
                    label = file.read(member.size)
                elif image is None and f".{suffix}" in image_suffixes():
                    image = member
            if image is not None:
                self.names.append(image.name)
                self.classes.append(label)
                spans.append((image.offset_data, image.size))
        self._spans = np.array(spans, np.int64).reshape(-1, 2)

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


def _split_name(name: str) -> tuple[str, str]:
    """Split a member name at the first dot of the file name into the key and the lower-case suffix.

    Both are empty for hidden files and files without a dot, which do not belong to a sample.
    """
    folder, slash, base = name.rpartition("/")
    stem, dot, suffix = base.partition(".")
    return (f"{folder}{slash}{stem}", suffix.lower()) if stem and dot else ("", "")


class ShardedImages(LabeledImages):
    """The images of shards, in order. Only the list of shards and the indexes of a few open shards are in memory.

    A shard is downloaded, opened and indexed on first use. The most recently used shards stay open. Instances can be
    pickled, and used in both processes after a fork. The images of an unreadable shard are unreadable. Without class
    names, all images have the label UNLABELED.
    """

    def __init__(self, store: Store, shards: Sequence[Shard], classes: tuple[str, ...], source: str) -> None:
        self.classes, self.source = classes, source
        self._store, self.shards = store, tuple(shards)
        self._ends = np.cumsum([shard.images for shard in shards], dtype=np.int64)
        # open shards, or the reasons why they are unreadable, and when they expire; the least recently used first
        self._open_shards: OrderedDict[int, tuple[TarSamples | str, float]] = OrderedDict()

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def shard_sizes(self) -> list[int]:
        """The number of images in each shard."""
        return [shard.images for shard in self.shards]

    @property
    def labels(self) -> np.ndarray:  # type: ignore[override]  # not an attribute: read on demand
        """The label of each image, int64 (n,). Reads all shards at each access. Raises UnreadableImage."""
        return np.array([self.label(index) for index in range(len(self))], np.int64)

    @property
    def fingerprint(self) -> str:
        """A hash of the content and order of the shards, from shards.json."""
        lines = "".join(f"{shard.images} {shard.sha256}\n" for shard in self.shards)
        return hashlib.sha256(f"{self.classes!r}\n{lines}".encode()).hexdigest()

    def label(self, index: int) -> int:
        if not self.classes:
            return UNLABELED
        shard, position = self._find(index)
        content = shard.classes[position]
        if not content:
            raise UnreadableImage(shard.name(position), "it has no class (.cls)")
        label = parse_class(content)
        if label is None or label >= len(self.classes):
            expected = f"its class must be a number below {len(self.classes)}"
            raise UnreadableImage(shard.name(position), f"{expected}, got {content[:20]!r}")
        return label

    def file(self, index: int) -> tuple[bytes, str]:
        shard, position = self._find(index)
        return shard.image(position), PurePosixPath(shard.names[position]).suffix.lower()

    def name(self, index: int) -> str:
        """The path or URL of the shard, and the name of the member, or the position in an unreadable shard."""
        try:
            shard, position = self._find(index)
        except UnreadableImage as error:
            return error.path
        return shard.name(position)

    def key(self, index: int) -> str:
        """Return the WebDataset key of an image. Raises UnreadableImage for an unreadable shard."""
        shard, position = self._find(index)
        return _split_name(shard.names[position])[0]

    def select_shards(self, numbers: Sequence[int]) -> "ShardedImages":
        """Return the images of the shards with these numbers."""
        return ShardedImages(self._store, [self.shards[number] for number in numbers], self.classes, self.source)

    def without_labels(self) -> "ShardedImages":
        """Return the same images with the label UNLABELED, so that labels are not read."""
        return ShardedImages(self._store, self.shards, (), self.source)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_open_shards": OrderedDict()}

    def _find(self, index: int) -> tuple[TarSamples, int]:
        number = int(np.searchsorted(self._ends, index, side="right"))
        position = int(index - self._ends[number] + self.shards[number].images)
        return self._open(number, position), position

    def _open(self, number: int, position: int) -> TarSamples:
        """Open a shard. position: of the image, for the error."""
        shard = self.shards[number]
        path = self._store.path(shard.name)
        samples, expires = self._open_shards.get(number, ("", 0.0))
        if time.monotonic() >= expires:
            try:
                samples, expires = TarSamples(path, self._store.open(shard)), math.inf
                if (count := len(samples.names)) != shard.images:
                    raise OSError(f"it has {count} images, not {shard.images} as in {SHARD_LIST}")
            except (tarfile.TarError, OSError) as error:
                samples, expires = describe_error(error, path), time.monotonic() + _RETRY_SECONDS
            self._open_shards[number] = samples, expires
            if len(self._open_shards) > _MAX_OPEN:
                self._open_shards.popitem(last=False)
        self._open_shards.move_to_end(number)
        if isinstance(samples, str):
            raise UnreadableImage(f"{path}, image {position}", samples)
        return samples


def parse_class(content: bytes) -> int | None:
    """Parse the class index in a .cls member; None if it is invalid."""
    text = content.strip()
    return int(text) if text.isdigit() and len(text) < 10 else None
