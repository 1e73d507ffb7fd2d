"""Writes a dataset as WebDataset shards, and resumes; writes shards.json for those of other tools; verifies shards."""

import contextlib
import hashlib
import io
import os
import tarfile
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np

from lambdanets.data.datasets import Splits
from lambdanets.data.image_folders import TEST, VALIDATION, parse_name
from lambdanets.data.image_search import is_image_name
from lambdanets.data.images import (
    UnreadableImage,
    check_folder,
    check_unreadable,
    describe_error,
    first_readable,
    open_image,
    read_image,
)
from lambdanets.data.labeled_images import DatasetItem, ImageFile, ImageFiles, LabeledImages
from lambdanets.data.order import permutation
from lambdanets.data.shards import (
    SHARD_LIST,
    UNLABELED,
    Shard,
    ShardImage,
    ShardList,
    index_tar,
    is_url,
    open_shard,
    parse_class,
    read_shard_list,
)
from lambdanets.errors import InputError, one_line
from lambdanets.files import atomic_open, encode_utf8, file_sha256, open_regular
from lambdanets.progress import Progress, track
from lambdanets.records import write_json
from lambdanets.signals import check_signals
from lambdanets.terminal import echo, plural
from lambdanets.work import WorkFolder
from lambdanets_lab.remote import download

_OPTIONS = ".options.json"  # those that the shards were written with
_reading = threading.Lock()  # datasets of other packages are not made for several threads


@dataclass(frozen=True)
class _Split:
    images: LabeledImages
    labels: np.ndarray
    keys: list[str]
    shards: list[np.ndarray]  # indices of each shard's images, in order


def write_shards(
    source: Splits | Sequence[Path],
    out: Path,
    *,
    images_per_shard: int = 10_000,
    threads: int = 1,
    seed: int = 0,
    check_images: bool = True,
    max_unreadable: int = 100,
) -> ShardList:
    """Write a dataset as shards, and shards.json at the end; or resume unfinished work.

    source: a dataset from `open_splits`, or paths of images without classes.
    images_per_shard: maximum number of images in a shard.
    threads: number of shards that are written at a time.
    seed: for the shuffling of the images of each split, so that every shard has images of different classes.
    check_images: decode each image once.
    max_unreadable: maximum number of unreadable images, which are skipped.

    Image files are copied without changes; images in memory are written as PNG. The output depends only on the source
    and the options, not on the number of threads or on interruptions. Unfinished work is resumed if the image names,
    classes and options are equal; file contents are not compared. The names of all images are in memory.

    Raises InputError for a folder with other files, for a split without readable images
    (before the folder is created), and for more than max_unreadable unreadable images. In the last case, the next call
    keeps the complete shards. Raises InUseError if another process writes into the folder.
    """
    classes, splits = _plan(source, images_per_shard, seed)
    options = {
        "images, names or classes": _hash(classes, splits),
        "images_per_shard": images_per_shard,
        "seed": seed,
        "check_images": check_images,
    }
    folder = WorkFolder(out, options, _OPTIONS)
    # perhaps copied without hidden files; an index has no metadata
    if (out / SHARD_LIST).is_file() and (content := read_shard_list(str(out))).metadata:
        folder.check(content.metadata)
        return content
    folder.is_started()
    for name, split in splits.items():
        load = partial(_read, split, check=check_images)
        first_readable(load, range(len(split.keys)), "training" if name == "train" else name, max_unreadable)
    with folder.open():
        write_json(out / _OPTIONS, options)
        shards, unreadable = _write_all(splits, out, check_images, threads, max_unreadable)
        write_json(out / SHARD_LIST, asdict(ShardList(classes, shards, options | {"unreadable": unreadable})))
    return read_shard_list(str(out))


def _plan(
    source: Splits | Sequence[Path], images_per_shard: int, seed: int
) -> tuple[tuple[str, ...], dict[str, _Split]]:
    """Return the classes and, for each split, the keys of the images and their division into shards."""
    sets: dict[str, LabeledImages]
    if isinstance(source, Splits):
        classes, sets = source.train.classes, {"train": source.train, "validation": source.validation}
    else:
        if not source:
            raise InputError("source must have images, got none")
        classes, sets = (), {"train": ImageFiles(source, [UNLABELED] * len(source))}
    keys = iter(unique_keys([images.name(index) for images in sets.values() for index in range(len(images))]))
    splits = {}
    for name, images in sets.items():
        # as few shards as possible, with lengths that differ by at most 1
        shards = np.array_split(permutation(len(images), seed, 0), max(1, -(-len(images) // images_per_shard)))
        labels = np.asarray(images.labels, dtype=np.int64)
        splits[name] = _Split(images, labels, [next(keys) for _ in range(len(images))], shards)
    return classes, splits


def _hash(classes: Sequence[str], splits: dict[str, _Split]) -> str:
    """Return a hash of the class names, and of the keys and labels of each split."""
    digest = hashlib.sha256(repr(tuple(classes)).encode())
    for name, split in splits.items():
        for key, label in zip(split.keys, split.labels.tolist(), strict=True):
            digest.update(f"{name} {key!r} {label}\n".encode())
    return digest.hexdigest()


def unique_keys(names: Sequence[str]) -> list[str]:
    """Return a unique, readable WebDataset key for each name.

    A key is the path relative to the common folder, without the suffix of the image. Other dots in the file name become
    "_", because a WebDataset key ends at the first dot. Duplicate keys are numbered with "-2", "-3" and so on.
    """
    folders = [os.path.dirname(name) for name in (min(names), max(names))]  # noqa: PTH120 - not all names are paths
    root = os.path.commonpath(folders)
    used: dict[str, int] = {}
    keys = []
    for name in names:
        key = base = _key(os.path.relpath(name, root) if root else name)
        while key in used:
            used[base] += 1
            key = f"{base}-{used[base]}"
        used[key] = 1
        keys.append(key)
    return keys


def _key(name: str) -> str:
    folder, slash, base = encode_utf8(name).decode().rpartition("/")
    stem = PurePosixPath(base).stem if is_image_name(base) else base
    folder = "/".join("_" if part == ".." else part for part in folder.split("/"))  # safe to extract
    return f"{folder}{slash}{stem.replace('.', '_')}"


def _write_all(
    splits: dict[str, _Split], out: Path, check: bool, threads: int, max_unreadable: int
) -> tuple[dict[str, tuple[Shard, ...]], list[str]]:
    """Write the shards that are missing or incomplete; return the shards of each split, and unreadable images."""
    tasks = [(name, number) for name, split in splits.items() for number in range(len(split.shards))]
    shards: dict[tuple[str, int], Shard] = {}
    unreadable: list[str] = []
    stopped = threading.Event()
    total = sum(len(split.keys) for split in splits.values())
    with ThreadPoolExecutor(threads) as pool, Progress("writing shards", total, "images") as progress:
        running = {
            pool.submit(_write, splits[name], number, out / f"{name}-{number:05}.tar", check, stopped): (name, number)
            for name, number in tasks
        }
        try:
            while running:
                done, _ = wait(running, 0.5, FIRST_COMPLETED)
                check_signals()
                for future in done:
                    shard, messages = future.result()
                    shards[running.pop(future)] = shard
                    unreadable += messages
                    progress.update(shard.images + len(messages))
                    check_unreadable(unreadable, max_unreadable)
        finally:
            stopped.set()
            pool.shutdown(cancel_futures=True)
    return {name: tuple(shards[task] for task in tasks if task[0] == name) for name in splits}, sorted(unreadable)


def _write(split: _Split, number: int, path: Path, check: bool, stopped: threading.Event) -> tuple[Shard, list[str]]:
    """Write a shard, unless it is complete; return it, and messages about unreadable images."""
    unreadable: list[str] = []
    indices = split.shards[number]
    with contextlib.suppress(InputError):  # it is missing or damaged
        shard, _ = inspect_tar(path)
        if shard.images == len(indices):  # otherwise unreadable images may have been repaired
            return shard, []
    with atomic_open(path) as file, tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for index in indices.tolist():
            if stopped.is_set():
                raise InputError("the command was stopped")
            try:
                content, suffix = _read(split, index, check)
            except UnreadableImage as error:
                unreadable.append(f"{error.path}: {error.reason}")
                continue
            _add_member(tar, split.keys[index] + suffix, content)
            if split.labels[index] != UNLABELED:
                _add_member(tar, f"{split.keys[index]}.cls", str(split.labels[index]).encode())
    return inspect_tar(path)[0], unreadable


def _read(split: _Split, index: int, check: bool) -> tuple[bytes, str]:
    """Return the file content and suffix of an image; with check, decode it once. Raises UnreadableImage."""
    file = split.images.file(index)
    content = _encoded(file)
    if check:
        read_image(io.BytesIO(content), str(file))
    return content, PurePosixPath(str(file)).suffix.lower() or ".png"  # of an image that is in no file


def _encoded(file: ImageFile) -> bytes:
    """Return the content of an image file; an image of a dataset as PNG. Raises UnreadableImage."""
    if isinstance(file, DatasetItem):
        content = io.BytesIO()
        with _reading:
            image = read_image(file)
        image.save(content, "PNG")
        return content.getvalue()
    try:
        with open_image(file) as stream:
            return stream.read()
    except OSError as error:
        check_folder(error)
        raise UnreadableImage(str(file), describe_error(error)) from error


def _add_member(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)  # without owner and time, so that the same samples give the same tar
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def index_shards(folder: Path, classes: Sequence[str] | None = None) -> ShardList:
    """Write shards.json for a folder of WebDataset tar files, such as those of webdataset or img2dataset.

    classes: class names, by default the class indices.

    Files with the name of a validation or test split are the validation split, all others the training split. Either
    all images or none must have a class index in `KEY.cls`. Other members (.json, .txt, ...) are ignored, and tars
    without images are left out. Returns the content of shards.json.

    Raises InputError for a folder that is not writable, or a split without images in tars, for validation and test tars
    together, for a damaged tar, for a class that is not a number or has no name, and if only some images have a class.
    """
    if (folder / SHARD_LIST).exists():
        raise InputError(f"{folder / SHARD_LIST} exists; remove it to write it again")
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise InputError(f"folder must be a writable folder of tar files, or of links to them, got {str(folder)!r}")
    paths = sorted(path for path in folder.iterdir() if path.suffix == ".tar" and not path.name.startswith("."))
    held_out = {path: role for path in paths if (role := parse_name(path.stem).role) in (VALIDATION, TEST)}
    if {VALIDATION, TEST} <= set(held_out.values()):
        raise InputError(f"{folder} must have tar files of a validation or of a test split, got both; move one away")
    splits: dict[str, list[Shard]] = {"train": [], "validation": []} if held_out else {"train": []}
    labels: set[int | None] = set()
    for path in track(paths, "indexing", len(paths), "shards"):
        shard, images = inspect_tar(path)
        if images:  # a download may have failed for all images of a shard
            splits["validation" if path in held_out else "train"].append(shard)
        for image in images:
            label = parse_class(image.label)
            if image.label and label is None:
                raise InputError(f"class of {image.name!r} in {path} must be a number, got {image.label[:20]!r}")
            labels.add(label)
    if None in labels and len(labels) > 1:
        raise InputError(f"all images in {folder} or none must have a class (.cls), got both")
    if missing := [name for name, shards in splits.items() if not shards]:
        raise InputError(f"{folder} must have images KEY.SUFFIX in tar files of the {missing[0]} split, got none")
    if num_empty := len(paths) - sum(map(len, splits.values())):
        echo(f"left out: {plural(num_empty, 'tar')} without images")
    count = max((label + 1 for label in labels if label is not None), default=0)
    names = tuple(map(str, range(count))) if classes is None else tuple(classes)
    if len(names) < count or (names and not count):
        raise InputError(f"classes must be {count} names or more, for the labels in {folder}, got {len(names)}")
    shard_list = ShardList(names, {name: tuple(shards) for name, shards in splits.items()})
    write_json(folder / SHARD_LIST, asdict(shard_list))
    return shard_list


def inspect_tar(path: Path) -> tuple[Shard, list[ShardImage]]:
    """Return the entry of a tar in shards.json, and its images. Raises InputError."""
    try:
        with open_regular(path) as file:
            images = index_tar(file)
            digest, size = file_sha256(file), file.tell()
    except (OSError, tarfile.TarError) as error:
        raise InputError(f"{path} must be a complete tar file: {one_line(error)}") from error
    return Shard(path.name, len(images), size, digest), images


def verify_shards(location: str, *, threads: int = 1) -> tuple[ShardList, list[str]]:
    """Compare SHA-256 and number of images of every shard, in a folder or at a URL, with shards.json.

    Returns the content of shards.json, and a message for each missing or damaged shard. Shards at a URL are downloaded
    again. Raises InputError if there is no shards.json.
    """
    location = location.rstrip("/")
    content = read_shard_list(location)
    with tempfile.TemporaryDirectory(prefix="lambdanets-verify-") as folder, ThreadPoolExecutor(threads) as pool:
        # hashing and reading release the GIL
        problems = pool.map(lambda shard: _check_shard(location, shard, Path(folder)), content.shards)
        try:
            messages = [*track(problems, "verifying", len(content.shards), "shards")]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return content, [message for message in messages if message]


def _check_shard(location: str, shard: Shard, folder: Path) -> str:
    """Return a message if the shard is missing or damaged, else "". folder: for a download, which is removed."""
    path, copy = f"{location}/{shard.name}", folder / shard.name
    try:
        with download(path, copy, shard) if is_url(location) else open_shard(location, shard) as file:
            copy.unlink(missing_ok=True)
            if file_sha256(file) != shard.sha256:
                return f"{path}: its SHA-256 differs from {SHARD_LIST}"
            file.seek(0)
            count = len(index_tar(file))
    except FileNotFoundError:
        return f"{path}: there is no such file"
    except (OSError, tarfile.TarError) as error:
        return f"{path}: {one_line(error)}"
    return "" if count == shard.images else f"{path}: it has {count} images, not {shard.images}"
