"""Labels the images of shards with the predictions of a teacher, and writes one table per shard."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt

from lambdanets.data.pseudo_labels.tables import (
    DESCRIPTION,
    Origin,
    read_description,
    write_description,
    write_table,
)
from lambdanets.data.readable import check_unreadable
from lambdanets.data.shards.images import ShardedImages, open_shards
from lambdanets.files import remove_unfinished
from lambdanets.folders import WorkFolder
from lambdanets.inference.classification import ClassificationEvaluator, batch_size_that_fits
from lambdanets.inference.classifier import Classifier
from lambdanets.inference.loading import load_one_of
from lambdanets.inference.model_card import ClassifierCard
from lambdanets.locks import InUseError, locked
from lambdanets.models.weights import WeightSource, find_weights
from lambdanets.progress import track
from lambdanets.records import Workers, check
from lambdanets.training.distributed import get_world, set_device


@dataclass(frozen=True)
class LabelingResult:
    """Result of one labeling process.

    num_shards, num_images: labeled by this process. unreadable: one message per unreadable image. num_in_progress:
    shards that other processes are labeling.
    """

    num_shards: int
    num_images: int
    unreadable: tuple[str, ...]
    seconds: float
    num_in_progress: int


def label_shards(
    teacher: Path,
    location: str,
    out: Path,
    *,
    top: int = 5,
    batch_size: int | None = None,
    workers: int = 0,
    max_unreadable: int = 1000,
    device: str | None = None,
    report: Callable[[str, int, float], None] = lambda name, images, seconds: None,
) -> LabelingResult:
    """Write a table with the teacher's most probable classes for each training shard.

    Images are preprocessed as in the teacher's evaluation. Shards that already have a table or are locked by another
    process are skipped. Thus several processes, such as one per GPU under torchrun, can use the same folder, and each
    shard is labeled once. If a process is killed, another one labels its shard.

    location: folder or URL of the shards.
    top: number of classes stored per image. batch_size: images per forward pass; if None, as many as fit into memory.
    workers: number of data loading processes.
    device: such as cpu or cuda:1; by default the GPU of the process, if there is one.
    report: called with name, number of images and seconds of each finished shard.

    Raises InputError if the folder has labels of another teacher, dataset or top, and if more than max_unreadable
    images are unreadable.
    """
    set_device(get_world())
    check("workers", workers, Workers)
    check("top", top, PositiveInt)
    check("batch_size", batch_size, Annotated[int, Field(ge=2)] | None)
    check("max_unreadable", max_unreadable, NonNegativeInt)
    source = find_weights(teacher)
    classifier: Classifier = load_one_of([ClassifierCard], source, device)
    splits, _ = open_shards(location)
    images = splits["train"].without_labels()
    batch_size = batch_size or batch_size_that_fits(classifier, get_world().local_world_size)
    top = min(top, len(classifier.classes))
    origin = Origin(classifier.classes, _description(classifier, source, images), top)
    folder = WorkFolder(out, "labels", _identity(origin), _read_identity)
    with folder.open(shared=True):
        if not folder.is_started():
            write_description(out, origin, [Path(name).stem for name in images.shard_names])
    num_shards = num_images = num_in_progress = 0
    unreadable: list[str] = []
    start = time.monotonic()
    for index, name in enumerate(images.shard_names):
        table = out / f"{Path(name).stem}.parquet"
        if table.is_file():
            continue
        try:
            with locked(out / f".{name}.lock", table):
                if not table.is_file():
                    shard_start = time.monotonic()
                    remove_unfinished(out, table.name)
                    shard = images.select_shards([index])
                    # a shard whose images were all unreadable has no images
                    batches: AbstractContextManager[Any] = nullcontext(())
                    if len(shard):
                        batches = ClassificationEvaluator(classifier, shard).batches(batch_size, workers)
                    count = _label_shard(classifier, shard, batches, table, origin, unreadable, max_unreadable)
                    report(name, count, time.monotonic() - shard_start)
                    num_shards, num_images = num_shards + 1, num_images + count
        except InUseError:
            num_in_progress += 1
    seconds = time.monotonic() - start
    return LabelingResult(num_shards, num_images, tuple(unreadable), seconds, num_in_progress)


def _description(classifier: Classifier, teacher: WeightSource, images: ShardedImages) -> dict[str, Any]:
    return {"model": classifier.card.model, "weights": teacher.sha256(), "images": images.fingerprint}


def _identity(origin: Origin) -> dict[str, Any]:
    """Return everything that the labels depend on: classes, top, and the teacher's model, weights and images."""
    return {"classes": origin.classes, "top": origin.top_k} | origin.teacher


def _read_identity(out: Path) -> dict[str, Any] | None:
    return _identity(read_description(out)[0]) if (out / DESCRIPTION).is_file() else None


def _label_shard(
    classifier: Classifier,
    images: ShardedImages,
    batches: AbstractContextManager[Any],
    table: Path,
    origin: Origin,
    unreadable: list[str],
    max_unreadable: int,
) -> int:
    """Write the table of one shard and return the number of its readable images.

    Messages about unreadable images are added to `unreadable`. If there are more than max_unreadable, raises InputError
    and writes no table; the shard can be labeled later.
    """
    positions, classes, probabilities = [], [], []
    with batches as loader:
        for batch in track(loader, f"labeling {table.stem}", len(loader), "batches"):
            unreadable += batch.unreadable
            check_unreadable(unreadable, max_unreadable)
            if len(batch.labels):
                top = classifier.probabilities(batch.images).topk(origin.top_k)
                positions.append(batch.indices.numpy())
                classes.append(top.indices.numpy())
                probabilities.append(top.values.numpy())
    empty = np.empty((0, origin.top_k))
    rows = np.concatenate(positions or [np.empty(0)]).astype(np.int64)
    write_table(
        table,
        origin,
        keys=[images.key(int(position)) for position in rows],
        positions=rows,
        classes=np.concatenate(classes or [empty]).astype(np.int64),
        probabilities=np.concatenate(probabilities or [empty]),
    )
    return len(rows)
