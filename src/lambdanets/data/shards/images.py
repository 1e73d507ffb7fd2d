"""Images in WebDataset shards, each found by its number and read when it is asked for."""

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
from lambdanets.data.shards.tar_samples import TarSamples, class_number, read_tar_samples, split_name
from lambdanets.errors import one_line

UNLABELLED = -1
_OPEN = 2 * WINDOW  # workers do not leave a window all at once
_FORGIVEN = 300.0  # seconds after which a shard that could not be had is asked for again


class ShardedImages:
    """Images in shards, numbered through them in order. Only the list of shards is held, and an index of a few.

    A shard is fetched, opened and indexed when an image of it is first asked for; the last few stay open. May be
    pickled, and used on both sides of a fork. An image in a shard that cannot be had is an unreadable image; the shard
    is not asked for again for some minutes. Without class names, every image has the class UNLABELLED.
    """

    def __init__(self, store: ShardStore, shards: Sequence[Shard], classes: tuple[str, ...]) -> None:
        self.classes = classes
        self._store = store
        self._shards = tuple(shards)
        self._ends = np.cumsum([shard.images for shard in shards], dtype=np.int64)
        self._forget()

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def groups(self) -> list[int]:
        """The number of images in each shard: consecutive numbers lie together."""
        return [shard.images for shard in self._shards]

    @property
    def total_bytes(self) -> int:
        """The size of all shards together."""
        return sum(shard.bytes for shard in self._shards)

    @property
    def shard_names(self) -> list[str]:
        """The file name of each shard."""
        return [shard.name for shard in self._shards]

    @property
    def labels(self) -> np.ndarray:
        """The class number of every image, int64 (n,), read from all shards at each call.

        Raises UnreadableShard and UnreadableImage.
        """
        labels = np.full(len(self), UNLABELLED, dtype=np.int64)
        if self.classes:
            done = 0
            for number, shard in enumerate(self._shards):
                opened = self._open(number)
                labels[done : done + shard.images] = [self._label(opened, place) for place in range(shard.images)]
                done += shard.images
        return labels

    @property
    def fingerprint(self) -> str:
        """A hash of the shards' content and order, from their list alone."""
        lines = "".join(f"{shard.images} {shard.sha256}\n" for shard in self._shards)
        return hashlib.sha256(f"{self.classes!r}\n{lines}".encode()).hexdigest()

    def load(self, index: int) -> tuple[Image.Image, int]:
        """Decode one image and give its class number. Raises UnreadableImage, also where its shard cannot be had."""
        opened, place = self._find(index)
        label = self._label(opened, place) if self.classes else UNLABELLED
        return read_image(io.BytesIO(opened.image(place)), opened.name(place)), label

    def file(self, index: int) -> tuple[bytes, str]:
        """An image's file as it is, and its suffix. Raises UnreadableImage where its shard cannot be had."""
        opened, place = self._find(index)
        return opened.image(place), PurePosixPath(opened.samples.names[place]).suffix.lower()

    def name(self, index: int) -> str:
        """The shard's path or URL and the member's name; the image's place where the shard cannot be had."""
        try:
            opened, place = self._find(index)
        except UnreadableImage as error:
            return error.path
        return opened.name(place)

    def key(self, index: int) -> str:
        """An image's key in WebDataset's convention. Raises UnreadableImage where its shard cannot be had."""
        opened, place = self._find(index)
        return split_name(opened.samples.names[place])[0]

    def of_shards(self, numbers: Sequence[int]) -> "ShardedImages":
        """The images of some of the shards."""
        return ShardedImages(self._store, [self._shards[number] for number in numbers], self.classes)

    def unlabelled(self) -> "ShardedImages":
        """The same images, of which no class is read."""
        return ShardedImages(self._store, self._shards, ())

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": OrderedDict(), "_missing": {}}

    def _forget(self) -> None:
        self._opened: OrderedDict[int, _OpenShard] = OrderedDict()  # by number, the last used last
        self._missing: dict[int, tuple[float, str, str]] = {}  # when, path and reason

    def _find(self, index: int) -> tuple["_OpenShard", int]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        number = int(np.searchsorted(self._ends, index, side="right"))
        place = int(index - self._ends[number] + self._shards[number].images)
        try:
            return self._open(number), place
        except UnreadableShard as error:
            raise UnreadableImage(f"{error.path}, image {place}", error.reason) from error

    def _open(self, number: int) -> "_OpenShard":
        opened = self._opened.get(number)
        if opened is not None:
            self._opened.move_to_end(number)
            return opened
        failed = self._missing.get(number)
        if failed is not None and time.monotonic() - failed[0] < _FORGIVEN:
            raise UnreadableShard(*failed[1:])
        try:
            opened = _open_shard(self._store, self._shards[number])
        except UnreadableShard as error:
            self._missing[number] = (time.monotonic(), error.path, error.reason)
            raise
        self._opened[number] = opened
        if len(self._opened) > _OPEN:
            self._opened.popitem(last=False)
        return opened

    def _label(self, opened: "_OpenShard", place: int) -> int:
        content = opened.label(place)
        if not content:
            raise UnreadableImage(opened.name(place), "it has no class (.cls) beside it")
        label = class_number(content)
        if label is None:
            raise UnreadableImage(opened.name(place), f"its class is {content[:20]!r} and no number")
        if label >= len(self.classes):
            raise UnreadableImage(opened.name(place), f"its class is {label}, and there are {len(self.classes)}")
        return label


class _OpenShard:
    """An open tar and the places of its images. Reads by place, as forked workers share an open file's position."""

    def __init__(self, path: str, file: BinaryIO, samples: TarSamples) -> None:
        self.samples = samples
        self._path = path
        self._descriptor = os.dup(file.fileno())
        file.close()

    def __del__(self) -> None:
        os.close(self._descriptor)

    def name(self, place: int) -> str:
        return f"{self._path}/{self.samples.names[place]}"

    def image(self, place: int) -> bytes:
        start, length, _, _ = self.samples.places[place].tolist()
        return os.pread(self._descriptor, length, start)

    def label(self, place: int) -> bytes:
        _, _, start, length = self.samples.places[place].tolist()
        return os.pread(self._descriptor, length, start)


def _open_shard(store: ShardStore, shard: Shard) -> _OpenShard:
    file, path = store.open(shard), store.path(shard.name)
    try:
        samples = read_tar_samples(file)
        if len(samples.names) != shard.images:
            raise tarfile.ReadError(f"it holds {len(samples.names)} images and not {shard.images}, as the list says")
    except (tarfile.TarError, OSError) as error:
        file.close()
        raise UnreadableShard(path, one_line(error)) from error
    return _OpenShard(path, file, samples)


def is_sharded(data: str) -> bool:
    """Whether `data` names images in shards: a folder that holds shards.json, or any URL."""
    return is_url(data) or (bool(data) and Path(data, SHARD_LIST).is_file())


def open_shards(location: str, **options: Any) -> tuple[dict[str, ShardedImages], tuple[str, ...]]:
    """The parts ("train" and perhaps "validation") and the classes of a set in shards, in a folder or at a URL.

    `options` are those of ShardStore. No shard is opened. Raises InputError where there is no list of shards.
    """
    store = ShardStore(location, **options)
    listed = store.read_list()
    return {name: ShardedImages(store, shards, listed.classes) for name, shards in listed.parts.items()}, listed.classes
