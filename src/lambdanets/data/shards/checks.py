"""Verifies shards, and indexes shards that other tools wrote."""

import os
import tarfile
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from lambdanets.data.shards.listing import SHARD_LIST, Shard, ShardList, UnreadableShard
from lambdanets.data.shards.store import ShardStore
from lambdanets.data.shards.tar_samples import parse_class, read_tar_samples
from lambdanets.errors import InputError, one_line
from lambdanets.files import atomic_write, file_sha256, open_regular
from lambdanets.progress import track

_VALIDATION = ("val", "test")  # name prefixes of validation shards


@dataclass(frozen=True)
class Verified:
    """Number of shards and images in shards.json, and one message per missing or damaged shard."""

    shards: int
    images: int
    damaged: list[str]


def verify_shards(location: str, *, processes: int = 1) -> Verified:
    """Compare size, SHA-256 and number of images of every shard, in a folder or at a URL, with shards.json.

    Shards at a URL are downloaded again, by `processes` threads. Raises InputError if there is no shards.json.
    """
    shards = [shard for part in ShardStore(location).read_list().parts.values() for shard in part]
    cache_bytes = 2 * processes * max(shard.bytes for shard in shards)
    with tempfile.TemporaryDirectory(prefix="lambdanets-verify-") as cache:
        store = ShardStore(location, cache=Path(cache), cache_bytes=cache_bytes)
        with ThreadPoolExecutor(processes) as pool:  # hashing and reading release the GIL
            problems = pool.map(lambda shard: _check_shard(store, shard), shards)
            messages = list(track(problems, "verifying", len(shards), "shards"))
    return Verified(len(shards), sum(shard.images for shard in shards), [message for message in messages if message])


def _check_shard(store: ShardStore, shard: Shard) -> str:
    """A message about a missing or damaged shard, else ""."""
    path = store.path(shard.name)
    try:
        with store.open(shard) as file:
            if file_sha256(file) != shard.sha256:
                return f"{path}: its SHA-256 differs from shards.json"
            file.seek(0)
            images = len(read_tar_samples(file).names)
    except UnreadableShard as error:
        return f"{path}: {error.reason}"
    except (OSError, tarfile.TarError) as error:
        return f"{path}: {one_line(error)}"
    return "" if images == shard.images else f"{path}: it has {images} images, not {shard.images}"


def index_shards(folder: Path, classes: Sequence[str] | None = None) -> ShardList:
    """Write shards.json for a folder of WebDataset tar files, such as those of webdataset or img2dataset.

    Files whose names begin with "val" or "test" are the validation split, all others the training split. Either all
    images have a class index in `KEY.cls`, or none; other members (.json, .txt, ...) are ignored. `classes`: class
    names; the indices by default. Returns the list.

    Raises InputError for a folder without tar files, a tar that is damaged or without images, a class that is not a
    number or has no name, and if only some images have a class.
    """
    if (folder / SHARD_LIST).exists():
        raise InputError(f"{folder / SHARD_LIST} exists; remove it to write it again")
    if not folder.is_dir():
        raise InputError(f"folder must be a folder of tar files, got {str(folder)!r}, which does not exist")
    paths = sorted(path for path in folder.iterdir() if path.suffix == ".tar" and not path.name.startswith("."))
    parts: dict[str, list[Shard]] = {"train": [], "validation": []}
    highest = -1
    labeled: set[bool] = set()
    for path in paths:
        images, numbers, digest = _read_numbers(path)
        if not images:
            raise InputError(f"{path} must have images, got none")
        labeled |= {bool(numbers)}
        highest = max([highest, *numbers])
        if len(labeled) > 1:
            raise InputError(f"all images or none must have a class (.cls), got a difference at {path}")
        part = "validation" if path.name.startswith(_VALIDATION) else "train"
        parts[part].append(Shard(path.name, images, path.stat().st_size, digest))
    if not parts["train"]:
        raise InputError(f"{folder} must have tar files of training images, got none")
    names = tuple(classes) if classes is not None else tuple(str(number) for number in range(highest + 1))
    if highest >= len(names):
        raise InputError(f"classes must be at least {highest + 1} names, for the labels in {folder}, got {len(names)}")
    listed = ShardList(names, {name: tuple(shards) for name, shards in parts.items() if shards})
    atomic_write(folder / SHARD_LIST, listed.to_json())
    return listed


def _read_numbers(path: Path) -> tuple[int, set[int], str]:
    """The number of images in a tar, its class indices, and its SHA-256."""
    try:
        with open_regular(path) as file:
            samples = read_tar_samples(file)
            offsets = zip(samples.names, samples.offsets[:, 2:].tolist(), strict=True)
            labels = [(name, os.pread(file.fileno(), length, start)) for name, (start, length) in offsets]
            digest = file_sha256(file)
    except (OSError, tarfile.TarError) as error:
        raise InputError(f"{path} must be a complete tar file: {one_line(error)}") from error
    unlabeled = [name for name, content in labels if not content]
    if unlabeled and len(unlabeled) < len(labels):
        raise InputError(f"all images in {path} or none must have a class (.cls), got none for {unlabeled[0]!r}")
    numbers: set[int] = set()
    for name, content in labels:
        if content:
            number = parse_class(content)
            if number is None:
                raise InputError(f"class of {name!r} in {path} must be a number, got {content[:20]!r}")
            numbers.add(number)
    return len(labels), numbers, digest
