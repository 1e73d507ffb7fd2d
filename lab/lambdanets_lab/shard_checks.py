"""Verifies shards, and writes shards.json for shards of other tools."""

import tarfile
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path

from lambdanets.data.image_folders import TEST, VALIDATION, parse_name
from lambdanets.data.shards import SHARD_LIST, Shard, ShardList, Store, TarSamples, open_store, parse_class
from lambdanets.errors import InputError, one_line
from lambdanets.files import file_sha256, open_regular
from lambdanets.progress import track
from lambdanets.records import write_json
from lambdanets_lab.remote import RemoteStore


def inspect_tar(path: Path) -> tuple[Shard, list[tuple[str, bytes]]]:
    """Return the entry of a tar in shards.json, and name and .cls content of each image. Raises InputError."""
    try:
        with open_regular(path) as file:
            samples = TarSamples(path.name, file)
            digest, size = file_sha256(file), file.tell()
    except (OSError, tarfile.TarError) as error:
        raise InputError(f"{path} must be a complete tar file: {one_line(error)}") from error
    return Shard(path.name, len(samples.names), size, digest), [*zip(samples.names, samples.classes, strict=True)]


def verify_shards(location: str, *, threads: int = 1) -> tuple[ShardList, list[str]]:
    """Compare size, SHA-256 and number of images of every shard, in a folder or at a URL, with shards.json.

    Returns the content of shards.json, and a message for each missing or damaged shard. Shards at a URL are downloaded
    again. Raises InputError if there is no shards.json.
    """
    store, content = open_store(location)
    with tempfile.TemporaryDirectory(prefix="lambdanets-verify-") as cache, ThreadPoolExecutor(threads) as pool:
        if isinstance(store, RemoteStore):
            store = RemoteStore(location, Path(cache), 2 * threads * max(shard.bytes for shard in content.shards))
        problems = pool.map(partial(_check_shard, store), content.shards)  # hashing and reading release the GIL
        try:
            messages = [*track(problems, "verifying", len(content.shards), "shards")]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return content, [message for message in messages if message]


def _check_shard(store: Store, shard: Shard) -> str:
    """Return a message if the shard is missing or damaged, else ""."""
    path = store.path(shard.name)
    try:
        with store.open(shard) as file:
            if file_sha256(file) != shard.sha256:
                return f"{path}: its SHA-256 differs from {SHARD_LIST}"
            file.seek(0)
            count = len(TarSamples(path, file).names)
    except FileNotFoundError:
        return f"{path}: there is no such file"
    except (OSError, tarfile.TarError) as error:
        return f"{path}: {one_line(error)}"
    return "" if count == shard.images else f"{path}: it has {count} images, not {shard.images}"


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
    labels: set[int | None] = set()
    for path in paths:
        shard, images = inspect_tar(path)
        if not images:
            raise InputError(f"{path} must have images KEY.SUFFIX, without dots in KEY, got none")
        splits["validation" if roles[path] in (VALIDATION, TEST) else "train"].append(shard)
        for name, content in images:
            label = parse_class(content)
            if content and label is None:
                raise InputError(f"class of {name!r} in {path} must be a number, got {content[:20]!r}")
            labels.add(label)
    if None in labels and len(labels) > 1:
        raise InputError(f"all images in {folder} or none must have a class (.cls), got both")
    if not splits["train"]:
        raise InputError(f"{folder} must have tar files of training images, got none")
    count = max((label + 1 for label in labels if label is not None), default=0)
    names = tuple(map(str, range(count))) if classes is None else tuple(classes)
    if len(names) < count or (names and not count):
        raise InputError(f"classes must be {count} names or more, for the labels in {folder}, got {len(names)}")
    shard_list = ShardList(names, {name: tuple(shards) for name, shards in splits.items() if shards})
    write_json(folder / SHARD_LIST, asdict(shard_list))
    return shard_list
