"""Verifies shards, and writes shards.json for shards of other tools."""

import os
import tarfile
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from lambdanets.data.image_folders import TEST, VALIDATION, parse_name
from lambdanets.data.shards.listing import SHARD_LIST, Shard, ShardList, UnreadableShard
from lambdanets.data.shards.store import ShardStore
from lambdanets.data.shards.tar_samples import parse_class, read_tar_samples
from lambdanets.errors import InputError, one_line
from lambdanets.files import atomic_write, file_sha256, open_regular
from lambdanets.progress import track


@dataclass(frozen=True)
class VerificationResult:
    """Number of shards and images in shards.json, and one message per missing or damaged shard."""

    num_shards: int
    num_images: int
    damaged: list[str]


def verify_shards(location: str, *, threads: int = 1) -> VerificationResult:
    """Compare size, SHA-256 and number of images of every shard, in a folder or at a URL, with shards.json.

    Shards at a URL are downloaded again. Raises InputError if there is no shards.json.
    """
    shards = [shard for split in ShardStore(location).read_list().splits.values() for shard in split]
    cache_bytes = 2 * threads * max(shard.bytes for shard in shards)
    with tempfile.TemporaryDirectory(prefix="lambdanets-verify-") as cache:
        store = ShardStore(location, cache=Path(cache), cache_bytes=cache_bytes)
        with ThreadPoolExecutor(threads) as pool:  # hashing and reading release the GIL
            problems = pool.map(lambda shard: _check_shard(store, shard), shards)
            try:
                messages = list(track(problems, "verifying", len(shards), "shards"))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    return VerificationResult(
        len(shards), sum(shard.images for shard in shards), [message for message in messages if message]
    )


def _check_shard(store: ShardStore, shard: Shard) -> str:
    """Return a message if the shard is missing or damaged, else ""."""
    path = store.path(shard.name)
    try:
        with store.open(shard) as file:
            if file_sha256(file) != shard.sha256:
                return f"{path}: its SHA-256 differs from shards.json"
            file.seek(0)
            num_images = len(read_tar_samples(file).names)
    except UnreadableShard as error:
        return f"{path}: {error.reason}"
    except (OSError, tarfile.TarError) as error:
        return f"{path}: {one_line(error)}"
    return "" if num_images == shard.images else f"{path}: it has {num_images} images, not {shard.images}"


def index_shards(folder: Path, classes: Sequence[str] | None = None) -> ShardList:
    """Write shards.json for a folder of WebDataset tar files, such as those of webdataset or img2dataset.

    classes: class names, by default the class indices.

    Files with the name of a validation or test split are the validation split, all others the training split. Either
    all images or none must have a class index in `KEY.cls`. Other members (.json, .txt, ...) are ignored. Returns the
    content of shards.json.

    Raises InputError for a folder without tar files, for validation and test tars together, for a tar that is damaged
    or has no images, for a class that is not a number or has no name, and if only some images have a class.
    """
    if (folder / SHARD_LIST).exists():
        raise InputError(f"{folder / SHARD_LIST} exists; remove it to write it again")
    if not folder.is_dir():
        raise InputError(f"folder must be a folder of tar files, got {str(folder)!r}, which does not exist")
    paths = sorted(path for path in folder.iterdir() if path.suffix == ".tar" and not path.name.startswith("."))
    roles = {path: parse_name(path.stem).role for path in paths}
    if {VALIDATION, TEST} <= set(roles.values()):
        raise InputError(f"{folder} must have tar files of a validation or of a test split, got both; move one away")
    splits: dict[str, list[Shard]] = {"train": [], "validation": []}
    max_class = -1
    labeled: set[bool] = set()
    for path in paths:
        num_images, class_indices, digest = _read_tar(path)
        if not num_images:
            raise InputError(f"{path} must have images, got none")
        labeled |= {bool(class_indices)}
        max_class = max([max_class, *class_indices])
        if len(labeled) > 1:
            raise InputError(f"all images or none must have a class (.cls), got both: {path} differs from {paths[0]}")
        split = "validation" if roles[path] in (VALIDATION, TEST) else "train"
        splits[split].append(Shard(path.name, num_images, path.stat().st_size, digest))
    if not splits["train"]:
        raise InputError(f"{folder} must have tar files of training images, got none")
    if classes is not None and labeled == {False}:
        raise InputError(f"classes must be None for images without classes (.cls), got {len(classes)} names")
    names = tuple(classes) if classes is not None else tuple(str(number) for number in range(max_class + 1))
    if max_class >= len(names):
        raise InputError(
            f"classes must be at least {max_class + 1} names, for the labels in {folder}, got {len(names)}"
        )
    shard_list = ShardList(names, {name: tuple(shards) for name, shards in splits.items() if shards})
    atomic_write(folder / SHARD_LIST, shard_list.to_json())
    return shard_list


def _read_tar(path: Path) -> tuple[int, set[int], str]:
    """Return the number of images in a tar, its class indices, and its SHA-256."""
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
    class_indices: set[int] = set()
    for name, content in labels:
        if content:
            class_index = parse_class(content)
            if class_index is None:
                raise InputError(f"class of {name!r} in {path} must be a number, got {content[:20]!r}")
            class_indices.add(class_index)
    return len(labels), class_indices, digest
