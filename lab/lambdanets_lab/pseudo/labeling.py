"""Labels the images of shards with the predictions of a teacher, and writes one table per shard."""

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lambdanets.data.images import check_unreadable
from lambdanets.data.shards import open_shards
from lambdanets.errors import InputError
from lambdanets.inference.classifier import Classifier
from lambdanets.inference.loading import load
from lambdanets.models.weights import find_weights
from lambdanets.progress import track
from lambdanets.records import write_json
from lambdanets.training.distributed import get_world, set_device
from lambdanets.work import InUseError, WorkFolder, locked
from lambdanets_lab.pseudo.tables import DESCRIPTION, Labels, write_table


@dataclass(frozen=True)
class LabelingResult:
    """Result of one labeling process.

    num_shards, num_images: labeled by this process. unreadable: one message per unreadable image. num_in_progress:
    shards that other processes are labeling.
    """

    num_shards: int
    num_images: int
    unreadable: tuple[str, ...]
    num_in_progress: int


def label_shards(
    teacher: Path,
    shards: str,
    out: Path,
    *,
    top: int = 5,
    batch_size: int = 128,
    workers: int = 0,
    max_unreadable: int = 1000,
    device: str | None = None,
    report: Callable[[str, int, float], None] = lambda name, images, seconds: None,
) -> LabelingResult:
    """Write a table with the teacher's most probable classes for each training shard.

    Images are preprocessed as in the teacher's evaluation. Shards that already have a table or are locked by another
    process are skipped. Thus several processes, such as one per GPU under torchrun, can use the same folder, and each
    shard is labeled once. If a process is killed, another one labels its shard.

    shards: folder or URL of the shards. report: called with name, number of images and seconds of each finished shard.
    The others are options of `lambdanets pseudo-label`.

    Raises InputError if the folder has labels of another teacher, dataset or top, and if more than max_unreadable
    images are unreadable.
    """
    set_device(get_world())
    source = find_weights(teacher)
    classifier = load(source, device=device)
    if not isinstance(classifier, Classifier):
        raise InputError(f"teacher must be a classification model, got a {classifier.card.task} model")
    images = replace(open_shards(shards)["train"], classes=())
    description = {"model": classifier.card.model, "weights": source.sha256(), "images": images.fingerprint}
    names = [Path(shard.name).stem for shard in images.shards]
    labels = Labels(classifier.classes, description, min(top, len(classifier.classes)), tuple(names))
    folder = WorkFolder(out, asdict(labels), DESCRIPTION)
    with folder.open(shared=True):
        if not folder.is_started():
            write_json(out / DESCRIPTION, asdict(labels), None)
    num_shards = num_images = num_in_progress = 0
    unreadable: list[str] = []
    for index, name in enumerate(names):
        table = out / f"{name}.parquet"
        if table.is_file():
            continue
        try:
            with locked(out / f".{name}.lock", table):
                if table.is_file():
                    continue
                start = time.monotonic()
                shard = replace(images, shards=images.shards[index : index + 1])
                # a shard whose images were all unreadable has no images
                batches: AbstractContextManager[Any] = nullcontext(())
                if len(shard):
                    batches = replace(classifier, images=shard).batches(batch_size=batch_size, workers=workers)
                with batches as loader:
                    tracked = track(loader, f"labeling {name}", len(loader), "batches")
                    positions, classes, probabilities, skipped = _label(classifier, tracked, labels.top)
                unreadable += skipped
                check_unreadable(unreadable, max_unreadable)
                keys = [shard.key(int(position)) for position in positions]
                write_table(table, keys, positions, classes, probabilities)
                report(name, len(keys), time.monotonic() - start)
                num_shards, num_images = num_shards + 1, num_images + len(keys)
        except InUseError:
            num_in_progress += 1
    return LabelingResult(num_shards, num_images, tuple(unreadable), num_in_progress)


def _label(
    classifier: Classifier, batches: Iterable[Any], top_k: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[str]]:
    """Return positions (n,), classes and probabilities (n, top_k), and messages about unreadable images."""
    parts = [(np.empty(0, np.int64), np.empty((0, top_k), np.int64), np.empty((0, top_k)))]
    unreadable: list[str] = []
    for batch in batches:
        unreadable += batch.unreadable
        if len(batch.targets):
            top = classifier.probabilities(batch.images).topk(top_k)
            parts.append((batch.indices.numpy(), top.indices.numpy(), top.values.numpy()))
    positions, classes, probabilities = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return positions, classes, probabilities, unreadable
