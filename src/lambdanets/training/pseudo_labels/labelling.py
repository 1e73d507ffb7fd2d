"""A teacher's labels for images in shards: a table for each shard."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lambdanets.bounds import WORKERS, check
from lambdanets.data.loader import ImageBatches
from lambdanets.data.shards.images import ShardedImages, open_shards
from lambdanets.errors import InputError
from lambdanets.files import remove_unfinished, sha256_of
from lambdanets.folders import WorkFolder
from lambdanets.inference.classification import batch_size_that_fits, batches_for
from lambdanets.inference.classifier import Classifier, load_classifier
from lambdanets.inference.weights import weights_in
from lambdanets.locks import InUseError, locked
from lambdanets.progress import track
from lambdanets.training.processes import processes, take_device
from lambdanets.training.pseudo_labels.tables import (
    DESCRIPTION,
    Origin,
    read_description,
    write_description,
    write_table,
)


@dataclass(frozen=True)
class Labelled:
    """What one process did: shards and images, those that could not be read, seconds; and shards left to others."""

    shards: int
    images: int
    unreadable: tuple[str, ...]
    seconds: float
    elsewhere: int


def label_shards(
    teacher: Path,
    location: str,
    out: Path,
    *,
    top: int = 5,
    batch_size: int | None = None,
    workers: int = 0,
    max_unreadable: int = 1000,
    tell: Callable[[str, int, float], None] = lambda name, images, seconds: None,
) -> Labelled:
    """Write a table of the teacher's most probable classes for each training shard of a set.

    The teacher sees the images as in its own evaluation. Shards that have their table are left alone, and so is one
    that another process has locked: so any number of processes that share the folder work on one set, each with a GPU
    of its own where torchrun starts them, none labels a shard twice, and what was killed is done by the next.

    batch_size: images at a time; as many as fit if None. workers: processes that decode images. tell: called
    with a shard's name, its images and the seconds it took. Raises InputError for a folder begun with another teacher,
    set or top, and where more than max_unreadable images cannot be read.
    """
    take_device(processes())
    check("workers", workers, int, WORKERS)
    for name, value, least in (("top", top, 1), ("batch_size", batch_size, 2), ("max_unreadable", max_unreadable, 0)):
        if value is not None and value < least:
            raise InputError(f"{name} must be at least {least}, got {value}")
    classifier = load_classifier(teacher)
    parts, _ = open_shards(location)
    images = parts["train"].unlabelled()
    batch_size = batch_size or batch_size_that_fits(classifier, processes().local_world_size)
    top = min(top, len(classifier.classes))
    origin = Origin(classifier.classes, _description(classifier, teacher, images), top)
    folder = WorkFolder(out, "labels", _identity(origin), _found)
    with folder.open(shared=True):
        if not folder.is_begun():
            write_description(out, origin, [Path(name).stem for name in images.shard_names])
    done = read = elsewhere = 0
    unreadable: list[str] = []
    started = time.monotonic()
    for patient in (False, True):  # first those that no other process has; then it waits for those of dead hosts
        elsewhere = 0
        for number, name in enumerate(images.shard_names):
            table = out / f"{Path(name).stem}.parquet"
            if table.is_file():
                continue
            try:
                with locked(out / f".{name}.lock", table, patient=patient):
                    if not table.is_file():
                        since = time.monotonic()
                        remove_unfinished(out, table.name)
                        part = images.of_shards([number])
                        batches = batches_for(classifier, part, batch_size, workers)
                        count = _label(classifier, part, batches, table, origin, unreadable, max_unreadable)
                        tell(name, count, time.monotonic() - since)
                        done, read = done + 1, read + count
            except InUseError:
                elsewhere += 1
    return Labelled(done, read, tuple(unreadable), time.monotonic() - started, elsewhere)


def _description(classifier: Classifier, teacher: Path, images: ShardedImages) -> dict[str, Any]:
    with weights_in(teacher).open("rb") as file:
        weights = sha256_of(file)
    return {"model": classifier.card.model, "weights": weights, "images": images.fingerprint}


def _identity(origin: Origin) -> dict[str, Any]:
    """What labels depend on: classes, top, and the teacher's model, weights and images."""
    return {"classes": origin.classes, "top": origin.top} | origin.teacher


def _found(out: Path) -> dict[str, Any] | None:
    return _identity(read_description(out)[0]) if (out / DESCRIPTION).is_file() else None


def _label(
    classifier: Classifier,
    images: ShardedImages,
    batches: ImageBatches,
    table: Path,
    origin: Origin,
    unreadable: list[str],
    max_unreadable: int,
) -> int:
    """Write the table of one shard and return how many of its images could be read.

    Names of those that could not are added to `unreadable`. Raises InputError where those are too many; the shard then
    has no table, so that it is labelled once it can be read.
    """
    positions, classes, probabilities = [], [], []
    with batches:
        for batch in track(batches, f"labelling {table.stem}", len(batches), "batches"):
            unreadable += batch.unreadable
            if len(unreadable) > max_unreadable:
                some = "; ".join(unreadable[:3])
                raise InputError(
                    f"{len(unreadable)} images could not be read, and max_unreadable is {max_unreadable}: {some}"
                )
            if len(batch.labels):
                best = classifier.probabilities(batch.images).topk(origin.top)
                positions.append(batch.indices.numpy())
                classes.append(best.indices.numpy())
                probabilities.append(best.values.numpy())
    empty = np.empty((0, origin.top))
    where = np.concatenate(positions or [np.empty(0)]).astype(np.int64)
    write_table(
        table,
        origin,
        keys=[images.key(int(position)) for position in where],
        positions=where,
        classes=np.concatenate(classes or [empty]).astype(np.int64),
        probabilities=np.concatenate(probabilities or [empty]),
    )
    return len(where)
