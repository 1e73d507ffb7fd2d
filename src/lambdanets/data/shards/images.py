"""Random access to images in WebDataset shards."""

import contextlib
import hashlib
import io
import os
import tarfile
import time
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import numpy as np
from PIL import Image

from lambdanets.data.images import UnreadableImage, read_image
from lambdanets.data.order import WINDOW
from lambdanets.data.shards.listing import SHARD_LIST, Shard, UnreadableShard
from lambdanets.data.shards.store import ShardStore, is_url
from lambdanets.data.shards.tar_samples import TarSamples, parse_class, read_tar_samples, split_name
from lambdanets.errors import one_line

UNLABELED = -1
_MAX_OPEN = 2 * WINDOW  # shards; two windows, because workers do not finish a window at the same time
_RETRY_SECONDS = 300.0  # after which an unreadable shard is opened again


class ShardedImages:
    """The images of shards, in order. Only the list of shards and the indexes of a few open shards are in memory.

    A shard is downloaded, opened and indexed on first use. The most recently used shards stay open. Instances can be
    pickled, and used in both processes after a fork. The images of an unreadable shard are unreadable; the shard is
    opened again after some minutes. Without class names, all images have the label UNLABELED.
    """

    def __init__(self, store: ShardStore, shards: Sequence[Shard], classes: tuple[str, ...]) -> None:
        self.classes = classes
        self._store = store
        self._shards = tuple(shards)
        self._ends = np.cumsum([shard.images for shard in shards], dtype=np.int64)
        self._open_shards: OrderedDict[int, _OpenShard] = OrderedDict()  # least recently used first
        self._failed: dict[int, tuple[float, str, str]] = {}  # time, path and reason

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def shard_sizes(self) -> list[int]:
        """The number of images in each shard."""
        return [shard.images for shard in self._shards]

    @property
    def total_bytes(self) -> int:
        """Total size of all shards."""
        return sum(shard.bytes for shard in self._shards)

    @property
    def shard_names(self) -> list[str]:
        """The file name of each shard."""
        return [shard.name for shard in self._shards]

    @property
    def labels(self) -> np.ndarray:
        """The label of each image, int64 (n,). Reads all shards at each access.

        Raises UnreadableShard and UnreadableImage.
        """
        labels = np.full(len(self), UNLABELED, dtype=np.int64)
        if self.classes:
            done = 0
            for number, shard in enumerate(self._shards):
                open_shard = self._open(number)
                labels[done : done + shard.images] = [
                    self._label(open_shard, position) for position in range(shard.images)
                ]
                done += shard.images
        return labels

    @property
    def fingerprint(self) -> str:
        """A hash of the content and order of the shards, from shards.json."""
        lines = "".join(f"{shard.images} {shard.sha256}\n" for shard in self._shards)
        return hashlib.sha256(f"{self.classes!r}\n{lines}".encode()).hexdigest()

    def load(self, index: int) -> tuple[Image.Image, int]:
        """Decode an image and return it with its label. Raises UnreadableImage, also for an unreadable shard."""
        shard, position = self._find(index)
        label = self._label(shard, position) if self.classes else UNLABELED
        return read_image(io.BytesIO(shard.image(position)), shard.name(position)), label

    def file(self, index: int) -> tuple[bytes, str]:
        """Return the encoded bytes of an image and their suffix. Raises UnreadableImage for an unreadable shard."""
        shard, position = self._find(index)
        return shard.image(position), PurePosixPath(shard.samples.names[position]).suffix.lower()

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
        return split_name(shard.samples.names[position])[0]

    def select_shards(self, numbers: Sequence[int]) -> "ShardedImages":
        """Return the images of the shards with these numbers."""
        return ShardedImages(self._store, [self._shards[number] for number in numbers], self.classes)

    def without_labels(self) -> "ShardedImages":
        """Return the same images with the label UNLABELED, so that labels are not read."""
        return ShardedImages(self._store, self._shards, ())

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_open_shards": OrderedDict(), "_failed": {}}

    def _find(self, index: int) -> tuple["_OpenShard", int]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        number = int(np.searchsorted(self._ends, index, side="right"))
        position = int(index - self._ends[number] + self._shards[number].images)
        try:
            return self._open(number), position
        except UnreadableShard as error:
            raise UnreadableImage(f"{error.path}, image {position}", error.reason) from error

    def _open(self, number: int) -> "_OpenShard":
        shard = self._open_shards.get(number)
        if shard is not None:
            self._open_shards.move_to_end(number)
            return shard
        failed = self._failed.get(number)
        if failed is not None and time.monotonic() - failed[0] < _RETRY_SECONDS:
            raise UnreadableShard(*failed[1:])
        try:
            shard = _open_shard(self._store, self._shards[number])
        except UnreadableShard as error:
            self._failed[number] = (time.monotonic(), error.path, error.reason)
            raise
        self._open_shards[number] = shard
        if len(self._open_shards) > _MAX_OPEN:
            self._open_shards.popitem(last=False)
        return shard

    def _label(self, shard: "_OpenShard", position: int) -> int:
        content = shard.label(position)
        if not content:
            raise UnreadableImage(shard.name(position), "it has no class (.cls)")
        label = parse_class(content)
        if label is None:
            raise UnreadableImage(shard.name(position), f"its class must be a number, got {content[:20]!r}")
        if label >= len(self.classes):
            raise UnreadableImage(shard.name(position), f"its class must be below {len(self.classes)}, got {label}")
        return label


class _OpenShard:
    """An open tar and the offsets of its images. Read with pread, because forked workers share the file position."""

    def __init__(self, path: str, file: BinaryIO, samples: TarSamples) -> None:
        self.samples = samples
        self._path = path
        self._descriptor = os.dup(file.fileno())
        file.close()

    def __del__(self) -> None:
        os.close(self._descriptor)

    def name(self, position: int) -> str:
        return f"{self._path}/{self.samples.names[position]}"

    def image(self, position: int) -> bytes:
        start, length, _, _ = self.samples.offsets[position].tolist()
        return os.pread(self._descriptor, length, start)

    def label(self, position: int) -> bytes:
        _, _, start, length = self.samples.offsets[position].tolist()
        return os.pread(self._descriptor, length, start)


def _open_shard(store: ShardStore, shard: Shard) -> _OpenShard:
    file, path = store.open(shard), store.path(shard.name)
    try:
        samples = read_tar_samples(file)
        if len(samples.names) != shard.images:
            raise tarfile.ReadError(f"it has {len(samples.names)} images, not {shard.images} as in shards.json")
    except (tarfile.TarError, OSError) as error:
        file.close()
        raise UnreadableShard(path, one_line(error)) from error
    return _OpenShard(path, file, samples)


def is_sharded(data: str) -> bool:
    """Whether `data` is a folder with shards.json, or a URL."""
    with contextlib.suppress(OSError):  # such as a name that is too long
        return is_url(data) or (bool(data) and Path(data, SHARD_LIST).is_file())
    return False


def open_shards(location: str, **options: Any) -> tuple[dict[str, ShardedImages], tuple[str, ...]]:
    """Return the splits ("train", and "validation" if there is one) and the class names of shards.

    location: a folder or a URL.
    options: arguments of ShardStore.

    Only shards.json is read. Raises InputError if there is no shards.json.
    """
    store = ShardStore(location, **options)
    content = store.read_list()
    splits = {name: ShardedImages(store, shards, content.classes) for name, shards in content.splits.items()}
    return splits, content.classes
