"""Checking shards that are there, and listing those that somebody else wrote."""

import os
import tarfile
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from lambdanets.data.shards.listing import SHARD_LIST, Shard, ShardList, UnreadableShard
from lambdanets.data.shards.store import ShardStore
from lambdanets.data.shards.tar_samples import class_number, read_tar_samples
from lambdanets.errors import InputError, one_line
from lambdanets.files import atomic_write, open_regular, sha256_of
from lambdanets.progress import track

_VALIDATION = ("val", "test")  # how the names of validation shards begin


@dataclass(frozen=True)
class Verified:
    """How many shards and images a set has by its list, and a sentence for each shard that is missing or damaged."""

    shards: int
    images: int
    bad: list[str]


def verify_shards(location: str, *, processes: int = 1) -> Verified:
    """Read every shard of a set, in a folder or at a URL, and compare size, SHA-256 and count with shards.json.

    What lies at a URL is fetched anew, a shard at a time in each of `processes` threads. Raises InputError where there
    is no list of shards.
    """
    shards = [shard for part in ShardStore(location).read_list().parts.values() for shard in part]
    room = 2 * processes * max(shard.bytes for shard in shards)
    with tempfile.TemporaryDirectory(prefix="lambdanets-verify-") as cache:
        store = ShardStore(location, cache=Path(cache), cache_bytes=room)
        with ThreadPoolExecutor(processes) as pool:  # hashing and reading let other threads run
            found = pool.map(lambda shard: _what_is_wrong(store, shard), shards)
            sentences = list(track(found, "verifying", len(shards), "shards"))
    return Verified(len(shards), sum(shard.images for shard in shards), [found for found in sentences if found])


def _what_is_wrong(store: ShardStore, shard: Shard) -> str:
    path = store.path(shard.name)
    try:
        with store.open(shard) as file:
            if sha256_of(file) != shard.sha256:
                return f"{path}: its SHA-256 is not that of the list"
            file.seek(0)
            images = len(read_tar_samples(file).names)
    except UnreadableShard as error:
        return f"{path}: {error.reason}"
    except (OSError, tarfile.TarError) as error:
        return f"{path}: {one_line(error)}"
    return "" if images == shard.images else f"{path}: it holds {images} images and not {shard.images}"


def index_shards(folder: Path, classes: Sequence[str] | None = None) -> ShardList:
    """Write shards.json for the WebDataset tars in a folder, such as those of webdataset or img2dataset.

    Tars whose names begin with "val" or "test" are the validation part, all others the training part, by name. Images
    have a class number in `KEY.cls` each, or none has; other members (.json, .txt, ...) are passed over. Without
    `classes`, the classes are named by their numbers. Returns the list.

    Raises InputError for a folder without tars, a tar that is damaged or without images, a class that is no number or
    has no name, and where only some images have one.
    """
    if (folder / SHARD_LIST).exists():
        raise InputError(f"{folder} has a list of shards already; remove {SHARD_LIST} to make it anew")
    if not folder.is_dir():
        raise InputError(f"expected a folder of tar files, but there is no '{folder}'")
    paths = sorted(path for path in folder.iterdir() if path.suffix == ".tar" and not path.name.startswith("."))
    parts: dict[str, list[Shard]] = {"train": [], "validation": []}
    highest = -1
    labelled: set[bool] = set()
    for path in paths:
        images, numbers, digest = _read_numbers(path)
        if not images:
            raise InputError(f"expected images in '{path}', but there are none")
        labelled |= {bool(numbers)}
        highest = max([highest, *numbers])
        if len(labelled) > 1:
            raise InputError(
                f"expected a class (.cls) for every image or for none, but '{path}' is unlike those before"
            )
        part = "validation" if path.name.startswith(_VALIDATION) else "train"
        parts[part].append(Shard(path.name, images, path.stat().st_size, digest))
    if not parts["train"]:
        raise InputError(f"expected tar files of training images in '{folder}', but there are none")
    names = tuple(classes) if classes is not None else tuple(str(number) for number in range(highest + 1))
    if highest >= len(names):
        raise InputError(f"expected names for the classes 0 to {highest} in '{folder}', but came {len(names)}")
    listed = ShardList(names, {name: tuple(shards) for name, shards in parts.items() if shards})
    atomic_write(folder / SHARD_LIST, listed.to_json())
    return listed


def _read_numbers(path: Path) -> tuple[int, set[int], str]:
    """How many images a tar holds, which class numbers, and its SHA-256."""
    try:
        with open_regular(path) as file:
            samples = read_tar_samples(file)
            places = zip(samples.names, samples.places[:, 2:].tolist(), strict=True)
            found = [(name, os.pread(file.fileno(), length, start)) for name, (start, length) in places]
            digest = sha256_of(file)
    except (OSError, tarfile.TarError) as error:
        raise InputError(f"expected a whole tar in '{path}', but: {one_line(error)}") from error
    without = [name for name, content in found if not content]
    if without and len(without) < len(found):
        raise InputError(
            f"expected a class (.cls) for every image in '{path}' or for none, but '{without[0]}' has none"
        )
    numbers: set[int] = set()
    for name, content in found:
        if content:
            number = class_number(content)
            if number is None:
                raise InputError(f"the class of '{name}' in '{path}' must be a number, got {content[:20]!r}")
            numbers.add(number)
    return len(found), numbers, digest
