"""Random access to images in WebDataset shards: tars that are listed in shards.json."""

import contextlib
import hashlib
import importlib
import io
import os
import tarfile
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, BinaryIO, NamedTuple

import numpy as np
from PIL import Image
from pydantic import Field

from lambdanets.data.images import UnreadableImage, read_image
from lambdanets.data.labeled_images import LabeledImages
from lambdanets.data.order import WINDOW
from lambdanets.data.tars import TarSamples, split_name
from lambdanets.errors import InputError, one_line
from lambdanets.files import open_regular
from lambdanets.records import parse_json

SHARD_LIST = "shards.json"
REMOTE_STORE = "lambdanets_lab.remote"  # module with `RemoteStore`, a `Store` at a URL
UNLABELED = -1
_RETRY_SECONDS = 300.0  # after which an unreadable shard is opened again
_MAX_OPEN = 2 * WINDOW  # shards; two windows, because workers do not finish a window at the same time
_Count = Annotated[int, Field(ge=0, lt=2**50)]  # sums of such numbers fit into int64


class _Unreadable(NamedTuple):
    """Stands for a shard that could not be opened. retry_at: when it is opened again, in monotonic seconds."""

    reason: str
    retry_at: float


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
        self._location = location

    def path(self, name: str) -> str:
        """The path or URL of a file."""
        return str(Path(self._location, name))

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


def open_store(location: str) -> Store:
    """Return the store of a folder or URL."""
    return importlib.import_module(REMOTE_STORE).RemoteStore(location) if is_url(location) else Store(location)


def read_list(store: Store) -> ShardList:
    """Read shards.json. Raises InputError if it cannot be read, or is invalid."""
    path = store.path(SHARD_LIST)
    try:
        content = store.read_list()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {_reason(error)}") from error
    return parse_json(content, ShardList, f"{path} is not a valid {SHARD_LIST}")


def is_url(location: str) -> bool:
    """Whether a location is a URL and not a path."""
    scheme, separator, _ = location.partition("://")
    return bool(separator) and scheme.replace("+", "").isalnum()


def is_sharded(data: str) -> bool:
    """Whether `data` is a folder with shards.json, or a URL."""
    with contextlib.suppress(OSError):  # such as a name that is too long
        return is_url(data) or (bool(data) and Path(data, SHARD_LIST).is_file())
    return False


def open_shards(location: str) -> tuple[dict[str, "ShardedImages"], tuple[str, ...]]:
    """Return the splits ("train", and "validation" if there is one) and the class names of shards.

    location: a folder or a URL. Only shards.json is read. Raises InputError if there is no shards.json.
    """
    store = open_store(location)
    content = read_list(store)
    splits = {name: ShardedImages(store, shards, content.classes) for name, shards in content.splits.items()}
    return splits, content.classes


class ShardedImages(LabeledImages):
    """The images of shards, in order. Only the list of shards and the indexes of a few open shards are in memory.

    A shard is downloaded, opened and indexed on first use. The most recently used shards stay open. Instances can be
    pickled, and used in both processes after a fork. The images of an unreadable shard are unreadable. Without class
    names, all images have the label UNLABELED.
    """

    def __init__(self, store: Store, shards: Sequence[Shard], classes: tuple[str, ...]) -> None:
        self.classes = classes
        self._store = store
        self._shards = tuple(shards)
        self._ends = np.cumsum([shard.images for shard in shards], dtype=np.int64)
        # open shards, or the reasons why they are unreadable; the least recently used first
        self._open_shards: OrderedDict[int, TarSamples | _Unreadable] = OrderedDict()

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def shard_sizes(self) -> list[int]:
        """The number of images in each shard."""
        return [shard.images for shard in self._shards]

    @property
    def shard_names(self) -> list[str]:
        """The file name of each shard."""
        return [shard.name for shard in self._shards]

    @property
    def labels(self) -> np.ndarray:  # type: ignore[override]  # not an attribute: read on demand
        """The label of each image, int64 (n,). Reads all shards at each access. Raises UnreadableImage."""
        if not self.classes:
            return np.full(len(self), UNLABELED)
        return np.array([self._label(*self._find(index)) for index in range(len(self))], np.int64)

    @property
    def fingerprint(self) -> str:
        """A hash of the content and order of the shards, from shards.json."""
        lines = "".join(f"{shard.images} {shard.sha256}\n" for shard in self._shards)
        return hashlib.sha256(f"{self.classes!r}\n{lines}".encode()).hexdigest()

    def load(self, index: int) -> tuple[Image.Image, int]:
        label = self._label(*self._find(index)) if self.classes else UNLABELED
        return read_image(io.BytesIO(self.file(index)[0]), self.name(index)), label

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
        return split_name(shard.names[position])[0]

    def select_shards(self, numbers: Sequence[int]) -> "ShardedImages":
        """Return the images of the shards with these numbers."""
        return ShardedImages(self._store, [self._shards[number] for number in numbers], self.classes)

    def without_labels(self) -> "ShardedImages":
        """Return the same images with the label UNLABELED, so that labels are not read."""
        return ShardedImages(self._store, self._shards, ())

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_open_shards": OrderedDict()}

    def _find(self, index: int) -> tuple[TarSamples, int]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        number = int(np.searchsorted(self._ends, index, side="right"))
        position = int(index - self._ends[number] + self._shards[number].images)
        return self._open(number, position), position

    def _open(self, number: int, position: int) -> TarSamples:
        """Open a shard. position: of the image, for the error."""
        shard = self._shards[number]
        path = self._store.path(shard.name)
        samples = self._open_shards.get(number)
        if samples is None or (isinstance(samples, _Unreadable) and time.monotonic() >= samples.retry_at):
            try:
                self._open_shards[number] = TarSamples(path, self._store.open(shard), shard.images)
            except (tarfile.TarError, OSError) as error:
                self._open_shards[number] = _Unreadable(_reason(error), time.monotonic() + _RETRY_SECONDS)
            if len(self._open_shards) > _MAX_OPEN:
                self._open_shards.popitem(last=False)
        self._open_shards.move_to_end(number)
        samples = self._open_shards[number]
        if isinstance(samples, _Unreadable):
            raise UnreadableImage(f"{path}, image {position}", samples.reason)
        return samples

    def _label(self, shard: TarSamples, position: int) -> int:
        content = shard.classes[position]
        if not content:
            raise UnreadableImage(shard.name(position), "it has no class (.cls)")
        label = parse_class(content)
        if label is None or label >= len(self.classes):
            expected = f"its class must be a number below {len(self.classes)}"
            raise UnreadableImage(shard.name(position), f"{expected}, got {content[:20]!r}")
        return label


def parse_class(content: bytes) -> int | None:
    """Parse the class index in a .cls member; None if it is invalid."""
    text = content.strip()
    return int(text) if text.isdigit() and len(text) < 10 else None


def _reason(error: Exception) -> str:
    return "there is no such file" if isinstance(error, FileNotFoundError) else one_line(error)
