"""Random access to images in WebDataset shards: tars that are listed in shards.json."""

import hashlib
import io
import itertools
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from pkgutil import resolve_name
from typing import Annotated, Any, BinaryIO, NamedTuple

import numpy as np
from pydantic import Field

from lambdanets.data.image_search import TarMember, image_suffixes, is_image_name, iterate_tar
from lambdanets.data.images import UnreadableImage, describe_error
from lambdanets.data.labeled_images import LabeledImages
from lambdanets.data.order import WINDOW
from lambdanets.errors import InputError
from lambdanets.files import open_regular
from lambdanets.records import parse_json
from lambdanets.terminal import plural

SHARD_LIST = "shards.json"
UNLABELED = -1
_REMOTE = "lambdanets_lab.remote"  # shards at URLs
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


def open_shard(location: str, shard: Shard) -> BinaryIO:
    """Open a shard in a folder, or a downloaded copy of one at a URL. Raises OSError."""
    path = f"{location}/{shard.name}"
    return resolve_name(f"{_REMOTE}:open_shard")(path, shard) if is_url(location) else open_regular(path)


def read_shard_list(location: str) -> ShardList:
    """Read the shards.json of a folder or URL. Raises InputError if it cannot be read, or is invalid."""
    path = f"{location}/{SHARD_LIST}"
    try:
        with io.BytesIO(resolve_name(f"{_REMOTE}:read")(path)) if is_url(location) else open_regular(path) as file:
            content = file.read()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {describe_error(error)}") from error
    return parse_json(content, ShardList, f"{path} is not a valid {SHARD_LIST}")


def is_url(location: str) -> bool:
    """Whether a location is a URL and not a path."""
    scheme, separator, _ = location.partition("://")
    return bool(separator) and scheme.replace("+", "").isalnum()


def open_shards(location: str) -> dict[str, "ShardedImages"]:
    """Return the splits ("train", and "validation" if there is one) of shards in a folder or at a URL.

    Only shards.json is read. Raises InputError if there is none, or it is invalid.
    """
    _index_shard.cache_clear()  # what was missing or damaged may have been repaired
    folder = location.rstrip("/")
    content = read_shard_list(folder)
    return {
        split: ShardedImages(folder, shards, content.classes, f"the {split} shards of '{location}'")
        for split, shards in content.splits.items()
    }


class ShardImage(NamedTuple):
    """An image in a shard: the name of its member, its class (.cls; b"" if missing), its offset and length in bytes."""

    name: str
    label: bytes
    start: int
    length: int


def index_tar(file: BinaryIO) -> list[ShardImage]:
    """Return the images of a WebDataset tar. Raises tarfile.TarError if it is incomplete or invalid.

    Consecutive members with the same path up to the first dot of the file name are one sample, of which the first image
    is used. A sample whose only images have other dots in their name, such as a.b.jpg, is an error.
    """
    images = []
    for key, members in itertools.groupby(iterate_tar(file), lambda member: _split_name(member[0])[0]):
        image, label = None, b""
        for name, start, length in (sample := [*members]):
            suffix = _split_name(name)[1]
            if suffix == "cls":
                file.seek(start)
                label = file.read(length)
            elif image is None and f".{suffix}" in image_suffixes():
                image = ShardImage(name, b"", start, length)
        if image is not None:
            images.append(image._replace(label=label))
        elif any(is_image_name(name) for name, *_ in sample):
            raise tarfile.ReadError(f"the images of {key!r} must be named KEY.SUFFIX, without dots in KEY")
    return images


@lru_cache(2 * WINDOW)  # two windows, because workers do not finish a window at the same time
def _index_shard(location: str, shard: Shard) -> list[ShardImage] | str:
    """Return the images of a shard, or the reason why it is unreadable; of the most recently used shards only once."""
    try:
        with open_shard(location, shard) as file:
            images = index_tar(file)
        if len(images) != shard.images:
            raise OSError(f"it has {plural(len(images), 'image')}, not {shard.images} as in {SHARD_LIST}")
    except (tarfile.TarError, OSError) as error:
        return describe_error(error)
    return images


def _split_name(name: str) -> tuple[str, str]:
    """Split a member name at the first dot of the file name into the key and the lower-case suffix.

    Both are empty for hidden files and files without a dot, which do not belong to a sample.
    """
    folder, slash, base = name.rpartition("/")
    stem, dot, suffix = base.partition(".")
    return (f"{folder}{slash}{stem}", suffix.lower()) if stem and dot else ("", "")


@dataclass(frozen=True)
class ShardedImages(LabeledImages):
    """The images of shards, in order. Only the list of shards and the indexes of a few shards are in memory.

    A shard is downloaded and indexed on first use. The images of an unreadable shard are unreadable. Without class
    names, all images have the label UNLABELED. location: their folder or URL, without a slash at the end.
    """

    location: str
    shards: tuple[Shard, ...]
    classes: tuple[str, ...]
    source: str

    def __len__(self) -> int:
        return sum(self.shard_sizes)

    @property
    def shard_sizes(self) -> list[int]:
        """The number of images in each shard."""
        return [shard.images for shard in self.shards]

    def select_shards(self, numbers: Iterable[int]) -> "ShardedImages":
        """Return the images of some of the shards."""
        return replace(self, shards=tuple(self.shards[number] for number in numbers))

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
        _, image = self._find(index)
        label = parse_class(image.label)
        if label is None or label >= len(self.classes):
            expected = f"its class (.cls) must be a number below {len(self.classes)}"
            raise UnreadableImage(self.name(index), f"{expected}, got {image.label[:20]!r}")
        return label

    def file(self, index: int) -> TarMember:
        shard, image = self._find(index)
        open_tar = partial(open_shard, self.location, shard)
        return TarMember(f"{self.location}/{shard.name}/{image.name}", open_tar, image.start, image.length)

    def key(self, index: int) -> str:
        """Return the WebDataset key of an image. Raises UnreadableImage for an unreadable shard."""
        return _split_name(self._find(index)[1].name)[0]

    @cached_property
    def _ends(self) -> np.ndarray:
        return np.cumsum(self.shard_sizes, dtype=np.int64)

    def _find(self, index: int) -> tuple[Shard, ShardImage]:
        number = int(np.searchsorted(self._ends, index, side="right"))
        shard = self.shards[number]
        position = int(index - self._ends[number] + shard.images)
        images = _index_shard(self.location, shard)
        if isinstance(images, str):
            raise UnreadableImage(f"{self.location}/{shard.name}, image {position}", images)
        return shard, images[position]


def parse_class(content: bytes) -> int | None:
    """Parse the class index in a .cls member; None if it is invalid."""
    text = content.strip()
    return int(text) if text.isdigit() and len(text) < 10 else None
