"""Writing a set of images into WebDataset shards, in processes, so that it can go on after any interruption."""

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
from lambdanets.data.shards.division import WRITING, begin, dependencies, identity, made_in, split_evenly, unique_keys
from lambdanets.data.shards.images import UNLABELLED
from lambdanets.data.shards.listing import SHARD_LIST, Shard, ShardList
from lambdanets.data.shards.tar_samples import Sample, write_tar_samples
from lambdanets.errors import InputError
from lambdanets.files import atomic_write, remove_unfinished
from lambdanets.folders import WorkFolder
from lambdanets.progress import Progress
from lambdanets.records import read_json, write_json
from lambdanets.signals import blocked, end_at_once, end_with_parent


@dataclass(frozen=True)
class Written:
    """What shards were written: their number, their images and bytes, what was left out ("name: reason"), the time."""

    shards: int
    images: int
    bytes: int
    unreadable: list[str]
    seconds: float


@dataclass(frozen=True)
class _Part:
    images: LabeledImages
    labels: np.ndarray
    keys: list[str]
    shards: list[np.ndarray]  # the numbers of each shard's images, in the order they are written


@dataclass(frozen=True)
class _Job:
    out: Path
    parts: dict[str, _Part]
    check_images: bool


@dataclass(frozen=True)
class _Entry:
    """What is kept of a written shard until all are."""

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
) -> Written:
    """Write a set as shards of at most so many images into a folder, shards.json last; or go on with it.

    `source` is a set as `open_splits` gives it, or the paths of images without classes. The images of a part are
    shuffled by `seed` first, so that each shard mixes the classes. Image files are copied byte for byte, images in
    memory become PNG. Each image is decoded once, but with check_images=False; what cannot be read is left out. A
    shard is read again before it gets its name, and each of its samples compared. What is written depends on the
    source and the options alone, not on processes or interruptions. Work that was begun is known again by the images'
    names and classes and by the options, not by what the files hold. The names of all images are held in memory.

    Raises InputError for options out of range, for a folder that holds anything but the beginning of the same work,
    for a part of which no image can be read, before there is a folder, and for more than `max_unreadable` images that
    cannot be read; what is written stays, to resume from, but for shards that left images out. Raises InUseError while
    another process writes into the folder.
    """
    for name, value, least in (
        ("images_per_shard", images_per_shard, 1),
        ("processes", processes, 1),
        ("seed", seed, 0),
        ("max_unreadable", max_unreadable, 0),
    ):
        if value < least:
            raise InputError(f"{name} must be at least {least}, got {value}")
    started = time.monotonic()
    classes, parts = _parts(source, images_per_shard, seed)
    made = {
        "set": identity(classes, {name: (part.keys, part.labels) for name, part in parts.items()}),
        "images_per_shard": images_per_shard,
        "seed": seed,
        "check_images": check_images,
    }
    folder, whole = WorkFolder(out, "shards", dependencies(made), made_in), out / SHARD_LIST
    if not whole.is_file():
        for name, part in parts.items():
            load = partial(_read, part, check=check_images)
            check_readable(load, len(part.keys), "training" if name == "train" else name, max_unreadable)
    if folder.is_begun() and whole.is_file() and not (out / WRITING).is_dir():
        return _finished(out, time.monotonic() - started)
    with folder.open():
        if not whole.is_file():
            if not folder.is_begun():
                begin(out, made)
            try:
                entries = _write(_Job(out, parts, check_images), processes, max_unreadable)
                unreadable = sorted(sentence for entry in entries.values() for sentence in entry.unreadable)
                listed = {
                    name: tuple(entries[_shard_name(name, number)].shard for number in range(len(part.shards)))
                    for name, part in parts.items()
                }
                atomic_write(whole, ShardList(classes, listed, made | {"unreadable": unreadable}).to_json())
            finally:
                for place in (out, out / WRITING):
                    remove_unfinished(place)  # of processes that were ended
        shutil.rmtree(out / WRITING)  # perhaps of one that was ended here
    return _finished(out, time.monotonic() - started)


def _parts(
    source: Splits | Sequence[Path], images_per_shard: int, seed: int
) -> tuple[tuple[str, ...], dict[str, _Part]]:
    sets: dict[str, LabeledImages]
    if isinstance(source, Splits):
        classes, sets = source.classes, {"train": source.train, "validation": source.validation}
    else:
        if not source:
            raise InputError("expected images to write into shards, but there are none")
        classes, sets = (), {"train": ImageFiles(source, [UNLABELLED] * len(source))}
    keys = unique_keys([images.name(index) for images in sets.values() for index in range(len(images))])
    parts, done = {}, 0
    for name, images in sets.items():
        own_keys = keys[done : done + len(images)]
        shards = split_evenly(permutation(len(images), seed, 0), images_per_shard)
        parts[name] = _Part(images, np.asarray(images.labels, dtype=np.int64), own_keys, shards)
        done += len(images)
    return classes, parts


def _write(job: _Job, processes: int, max_unreadable: int) -> dict[str, _Entry]:
    """Write the shards that are not there yet; the entries of all, by name."""
    remove_unfinished(job.out / WRITING)
    entries: dict[str, _Entry] = {}
    tasks = []
    for part in job.parts:
        for number in range(len(job.parts[part].shards)):
            entry = _read_entry(job.out, _shard_name(part, number))
            if entry is None or entry.unreadable:  # which may have been mended since
                tasks.append((part, number))
            else:
                entries[entry.shard.name] = entry
    total = sum(len(part.keys) for part in job.parts.values())
    done = sum(entry.shard.images + len(entry.unreadable) for entry in entries.values())
    with (
        Progress("writing shards", total, "images", initial=done) as progress,
        contextlib.closing(_write_in_processes(job, tasks, processes)) as written,
    ):
        for entry in written:
            entries[entry.shard.name] = entry
            progress.update(entry.shard.images + len(entry.unreadable))
            check_unreadable([each for entry in entries.values() for each in entry.unreadable], max_unreadable)
    return entries


def _write_in_processes(job: _Job, tasks: list[tuple[str, int]], processes: int) -> Generator[_Entry, None, None]:
    if processes == 1 or len(tasks) < 2:
        yield from (_write_shard(job, *task) for task in tasks)
        return
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(min(processes, len(tasks)), initializer=_begin, initargs=(job,)) as pool:
        with blocked():  # the parent may end a process before that has handlers of its own
            futures = [pool.submit(_write_one, *task) for task in tasks]
        try:
            for future in as_completed(futures):
                yield future.result()
        except (KeyboardInterrupt, GeneratorExit):
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()  # a shard that is half written takes as long again
            raise
        except BrokenProcessPool as error:
            raise InputError(
                f"a process that wrote shards into {job.out} was ended from outside, perhaps for want of memory; "
                "the same command goes on"
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


_job: _Job  # of a process of the pool: handed over once, as it may be large


def _begin(job: _Job) -> None:
    global _job
    _job = job
    end_at_once()  # Ctrl-C reaches all processes; the parent tells of it
    end_with_parent()  # a killed parent cannot end its pool


def _write_one(part: str, number: int) -> _Entry:
    return _write_shard(_job, part, number)


def _write_shard(job: _Job, part: str, number: int) -> _Entry:
    images = job.parts[part]
    name = _shard_name(part, number)
    unreadable: list[str] = []
    samples = _readable(images, images.shards[number], job.check_images, unreadable)
    shard = Shard(name, *write_tar_samples(job.out / name, samples))
    entry = _Entry(shard, unreadable)
    write_json(_entry_path(job.out, name), asdict(entry), None)
    return entry


def _read(part: _Part, index: int, check: bool) -> tuple[bytes, str]:
    """An image's file and its suffix, decoded once if it is to be checked. Raises UnreadableImage."""
    content, suffix = image_file(part.images, index)
    if check:
        read_image(io.BytesIO(content), part.images.name(index))
    return content, suffix


def _readable(part: _Part, numbers: np.ndarray, check: bool, unreadable: list[str]) -> Iterator[Sample]:
    """The samples that can be read; the others are added to `unreadable`."""
    for index in numbers.tolist():
        try:
            content, suffix = _read(part, index, check)
        except UnreadableImage as error:
            unreadable.append(f"{part.images.name(index)}: {error.reason}")
            continue
        label = None if part.labels[index] == UNLABELLED else int(part.labels[index])
        yield Sample(part.keys[index], suffix, content, label)


def _shard_name(part: str, number: int) -> str:
    return f"{part}-{number:05}.tar"


def _entry_path(out: Path, name: str) -> Path:
    return out / WRITING / f"{name}.json"


def _read_entry(out: Path, name: str) -> _Entry | None:
    """The entry of a shard that is there as it was written, or None."""
    try:
        entry = read_json(_entry_path(out, name), _Entry, "")
        return entry if (out / name).stat().st_size == entry.shard.bytes else None
    except (FileNotFoundError, InputError):
        return None


def _finished(out: Path, seconds: float) -> Written:
    whole = ShardList.from_json((out / SHARD_LIST).read_bytes(), str(out / SHARD_LIST))
    shards = [shard for part in whole.parts.values() for shard in part]
    images, size = sum(shard.images for shard in shards), sum(shard.bytes for shard in shards)
    return Written(len(shards), images, size, whole.made["unreadable"], seconds)
