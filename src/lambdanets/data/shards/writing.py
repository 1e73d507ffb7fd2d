"""Writes a dataset as WebDataset shards, in several processes, and resumes after interruptions."""

import contextlib
import io
import multiprocessing
import shutil
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from lambdanets.data.datasets import Splits
from lambdanets.data.images import UnreadableImage, read_image
from lambdanets.data.labeled_images import ImageFiles, LabeledImages, image_file
from lambdanets.data.order import permutation
from lambdanets.data.readable import check_readable, check_unreadable
from lambdanets.data.shards.images import UNLABELED
from lambdanets.data.shards.listing import SHARD_LIST, Shard, ShardList
from lambdanets.data.shards.plan import (
    WORK_FOLDER,
    hash_samples,
    identity,
    read_identity,
    split_evenly,
    unique_keys,
    write_plan,
)
from lambdanets.data.shards.tar_samples import Sample, write_tar_samples
from lambdanets.errors import InputError
from lambdanets.files import atomic_write, remove_unfinished
from lambdanets.folders import WorkFolder
from lambdanets.progress import Progress
from lambdanets.records import read_json, write_json
from lambdanets.signals import blocked, exit_with_parent, restore_default_handlers


@dataclass(frozen=True)
class WrittenShards:
    """The written shards: their number, images and bytes, messages about unreadable images, and the elapsed seconds."""

    num_shards: int
    num_images: int
    num_bytes: int
    unreadable: list[str]
    seconds: float


@dataclass(frozen=True)
class _Split:
    images: LabeledImages
    labels: np.ndarray
    keys: list[str]
    shards: list[np.ndarray]  # indices of each shard's images, in order


@dataclass(frozen=True)
class _Job:
    out: Path
    splits: dict[str, _Split]
    check_images: bool


@dataclass(frozen=True)
class _Entry:
    """The record of a finished shard, in a JSON file until all shards are finished."""

    shard: Shard
    unreadable: list[str]


def write_shards(
    source: Splits | Sequence[Path],
    out: Path,
    *,
    images_per_shard: int = 10_000,
    processes: int = 1,
    seed: int = 0,
    check_images: bool = True,
    max_unreadable: int = 100,
) -> WrittenShards:
    """Write a dataset as shards, and shards.json at the end; or resume unfinished work.

    source: a dataset from `open_splits`, or paths of images without classes.
    images_per_shard: maximum number of images in a shard.
    processes: number of worker processes.
    seed: for the shuffling of the images of each split, so that every shard has images of different classes.
    check_images: decode each image once.
    max_unreadable: maximum number of unreadable images, which are skipped.

    Image files are copied without changes; images in memory are written as PNG. Each shard is read back and compared
    before it gets its final name. The output depends only on the source and the options, not on the number of processes
    or on interruptions. Unfinished work is resumed if the image names, classes and options are equal; file contents are
    not compared. The names of all images are in memory.

    Raises InputError for options out of range, for a folder with other files, for a split without readable images
    (before the folder is created), and for more than max_unreadable unreadable images. In the last case, the next call
    keeps the finished shards, and writes shards with unreadable images again. Raises InUseError if another process
    writes into the folder.
    """
    for name, value, minimum in (
        ("images_per_shard", images_per_shard, 1),
        ("processes", processes, 1),
        ("seed", seed, 0),
        ("max_unreadable", max_unreadable, 0),
    ):
        if value < minimum:
            raise InputError(f"{name} must be at least {minimum}, got {value}")
    started = time.monotonic()
    classes, splits = _plan_splits(source, images_per_shard, seed)
    stored_options = {
        "set": hash_samples(classes, {name: (split.keys, split.labels) for name, split in splits.items()}),
        "images_per_shard": images_per_shard,
        "seed": seed,
        "check_images": check_images,
    }
    folder, shard_list = WorkFolder(out, "shards", identity(stored_options), read_identity), out / SHARD_LIST
    if not shard_list.is_file():
        for name, split in splits.items():
            load = partial(_read_image_file, split, check=check_images)
            check_readable(load, len(split.keys), "training" if name == "train" else name, max_unreadable)
    if folder.is_started() and shard_list.is_file() and not (out / WORK_FOLDER).is_dir():
        return _read_written(out, time.monotonic() - started)
    with folder.open():
        if not shard_list.is_file():
            if not folder.is_started():
                write_plan(out, stored_options)
            try:
                entries = _write(_Job(out, splits, check_images), processes, max_unreadable)
                unreadable = sorted(message for entry in entries.values() for message in entry.unreadable)
                shards = {
                    name: tuple(entries[_shard_name(name, number)].shard for number in range(len(split.shards)))
                    for name, split in splits.items()
                }
                atomic_write(
                    shard_list, ShardList(classes, shards, stored_options | {"unreadable": unreadable}).to_json()
                )
            finally:
                for path in (out, out / WORK_FOLDER):
                    remove_unfinished(path)  # temporary files of killed processes
        shutil.rmtree(out / WORK_FOLDER)
    return _read_written(out, time.monotonic() - started)


def _plan_splits(
    source: Splits | Sequence[Path], images_per_shard: int, seed: int
) -> tuple[tuple[str, ...], dict[str, _Split]]:
    sets: dict[str, LabeledImages]
    if isinstance(source, Splits):
        classes, sets = source.classes, {"train": source.train, "validation": source.validation}
    else:
        if not source:
            raise InputError("source must have images, got none")
        classes, sets = (), {"train": ImageFiles(source, [UNLABELED] * len(source))}
    keys = unique_keys([images.name(index) for images in sets.values() for index in range(len(images))])
    splits, first = {}, 0
    for name, images in sets.items():
        split_keys = keys[first : first + len(images)]
        shards = split_evenly(permutation(len(images), seed, 0), images_per_shard)
        splits[name] = _Split(images, np.asarray(images.labels, dtype=np.int64), split_keys, shards)
        first += len(images)
    return classes, splits


def _write(job: _Job, processes: int, max_unreadable: int) -> dict[str, _Entry]:
    """Write the missing shards; returns the entries of all shards by name."""
    remove_unfinished(job.out / WORK_FOLDER)
    entries: dict[str, _Entry] = {}
    tasks = []
    for split in job.splits:
        for number in range(len(job.splits[split].shards)):
            entry = _read_entry(job.out, _shard_name(split, number))
            if entry is None or entry.unreadable:  # unreadable images may have been repaired
                tasks.append((split, number))
            else:
                entries[entry.shard.name] = entry
    total = sum(len(split.keys) for split in job.splits.values())
    done = sum(entry.shard.images + len(entry.unreadable) for entry in entries.values())
    with (
        Progress("writing shards", total, "images", initial=done) as progress,
        contextlib.closing(_write_in_processes(job, tasks, processes)) as written,
    ):
        for entry in written:
            entries[entry.shard.name] = entry
            progress.update(entry.shard.images + len(entry.unreadable))
            messages = [message for entry in entries.values() for message in entry.unreadable]
            check_unreadable(messages, max_unreadable)
    return entries


def _write_in_processes(job: _Job, tasks: list[tuple[str, int]], processes: int) -> Generator[_Entry, None, None]:
    if processes == 1 or len(tasks) < 2:
        yield from (_write_shard(job, *task) for task in tasks)
        return
    other_processes = set(multiprocessing.active_children())
    with ProcessPoolExecutor(min(processes, len(tasks)), initializer=_init_worker, initargs=(job,)) as pool:
        with blocked():  # each worker unblocks signals when it has its own handlers
            futures = [pool.submit(_write_one, *task) for task in tasks]
        try:
            for future in as_completed(futures):
                yield future.result()
        except (KeyboardInterrupt, GeneratorExit):
            for process in set(multiprocessing.active_children()) - other_processes:
                process.terminate()  # a worker could not save an unfinished shard
            raise
        except BrokenProcessPool as error:
            raise InputError(
                f"a worker process that wrote shards to {job.out} was killed, perhaps out of memory; "
                "run the same command to resume"
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


_job: _Job  # in worker processes; passed once to each, because it may be large


def _init_worker(job: _Job) -> None:
    global _job
    _job = job
    restore_default_handlers()  # Ctrl-C is sent to all processes, but only the parent prints a message
    exit_with_parent()  # a killed parent cannot stop its workers


def _write_one(split: str, number: int) -> _Entry:
    return _write_shard(_job, split, number)


def _write_shard(job: _Job, split: str, number: int) -> _Entry:
    images = job.splits[split]
    name = _shard_name(split, number)
    unreadable: list[str] = []
    samples = _readable_samples(images, images.shards[number], job.check_images, unreadable)
    shard = Shard(name, *write_tar_samples(job.out / name, samples))
    entry = _Entry(shard, unreadable)
    write_json(_entry_path(job.out, name), asdict(entry), None)
    return entry


def _read_image_file(split: _Split, index: int, check: bool) -> tuple[bytes, str]:
    """Return the file content and suffix of an image; with check, decode it once. Raises UnreadableImage."""
    content, suffix = image_file(split.images, index)
    if check:
        read_image(io.BytesIO(content), split.images.name(index))
    return content, suffix


def _readable_samples(split: _Split, indices: np.ndarray, check: bool, unreadable: list[str]) -> Iterator[Sample]:
    """Yield the readable samples; messages about unreadable images are added to `unreadable`."""
    for index in indices.tolist():
        try:
            content, suffix = _read_image_file(split, index, check)
        except UnreadableImage as error:
            unreadable.append(f"{split.images.name(index)}: {error.reason}")
            continue
        label = None if split.labels[index] == UNLABELED else int(split.labels[index])
        yield Sample(split.keys[index], suffix, content, label)


def _shard_name(split: str, number: int) -> str:
    return f"{split}-{number:05}.tar"


def _entry_path(out: Path, name: str) -> Path:
    return out / WORK_FOLDER / f"{name}.json"


def _read_entry(out: Path, name: str) -> _Entry | None:
    """Return the entry of a finished shard; None if the shard is not finished."""
    try:
        entry = read_json(_entry_path(out, name), _Entry, "")
        return entry if (out / name).stat().st_size == entry.shard.bytes else None
    except (FileNotFoundError, InputError):
        return None


def _read_written(out: Path, seconds: float) -> WrittenShards:
    content = ShardList.from_json((out / SHARD_LIST).read_bytes(), str(out / SHARD_LIST))
    shards = [shard for split in content.splits.values() for shard in split]
    num_images, num_bytes = sum(shard.images for shard in shards), sum(shard.bytes for shard in shards)
    return WrittenShards(len(shards), num_images, num_bytes, content.metadata["unreadable"], seconds)
