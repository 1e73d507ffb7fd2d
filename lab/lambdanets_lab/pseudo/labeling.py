"""Labels the images of shards with the predictions of a teacher, and writes one table per shard."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from lambdanets.data.images import check_unreadable
from lambdanets.data.shards import ShardedImages, open_shards
from lambdanets.errors import InputError
from lambdanets.inference.classifier import Classifier
from lambdanets.inference.loading import load
from lambdanets.models.weights import find_weights
from lambdanets.progress import Progress
from lambdanets.records import write_json
from lambdanets.signals import check_signals
from lambdanets.training.distributed import get_world, set_device
from lambdanets.work import InUseError, WorkFolder, locked
from lambdanets_lab.pseudo.tables import DESCRIPTION, Labels, write_table


@dataclass(frozen=True)
class LabelingResult:
    """Result of one labeling process.

    num_shards, num_images: labeled by this process. unreadable: one message per unreadable image. num_in_progress:
    shards that other processes are labeling. num_unlabeled: shards without a readable image, which have no table.
    """

    num_shards: int
    num_images: int
    unreadable: tuple[str, ...]
    num_in_progress: int
    num_unlabeled: int


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
) -> LabelingResult:
    """Write a table with the teacher's most probable classes for each training shard.

    Images are preprocessed as in the teacher's evaluation. Shards that already have a table or are locked by another
    process are skipped. Thus several processes, such as one per GPU under torchrun, can use the same folder, and each
    shard is labeled once. If a process is killed, or no image of a shard is readable, the next call labels it.

    The arguments are those of `lambdanets pseudo-label`.

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
    num_shards = num_images = num_in_progress = num_unlabeled = 0
    unreadable: list[str] = []
    missing = [number for number, name in enumerate(names) if not (out / f"{name}.parquet").is_file()]
    total = sum(images.shard_sizes[number] for number in missing)
    with Progress("labeling", total, "images") as progress:
        for number in missing:
            table, shard = out / f"{names[number]}.parquet", images.select_shards([number])
            try:
                with locked(out / f".{names[number]}.lock", table):
                    if table.is_file():  # by now, of another process
                        progress.update(len(shard))
                        continue
                    positions, classes, probabilities, skipped = _label(
                        classifier, shard, labels.top, progress, batch_size=batch_size, workers=workers
                    )
                    unreadable += skipped
                    check_unreadable(unreadable, max_unreadable)
                    if len(shard) and not len(positions):
                        num_unlabeled += 1  # it can be missing for a moment
                        continue
                    keys = [shard.key(int(position)) for position in positions]
                    write_table(table, keys, positions, classes, probabilities)
                    num_shards, num_images = num_shards + 1, num_images + len(keys)
            except InUseError:
                num_in_progress += 1
                progress.update(len(shard))
    return LabelingResult(num_shards, num_images, tuple(unreadable), num_in_progress, num_unlabeled)


def _label(
    classifier: Classifier, images: ShardedImages, top_k: int, progress: Progress, **options: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[str]]:
    """Return positions (n,), classes and probabilities (n, top_k), and messages about unreadable images."""
    parts = [(np.empty(0, np.int64), np.empty((0, top_k), np.int64), np.empty((0, top_k)))]
    unreadable: list[str] = []
    if not len(images):  # all images of the shard were unreadable
        return *parts[0], unreadable
    with replace(classifier, images=images).batches(**options) as batches:
        for batch in batches:
            unreadable += batch.unreadable
            if len(batch.targets):
                top = classifier.probabilities(batch.images).topk(top_k)
                parts.append((batch.indices.numpy(), top.indices.numpy(), top.values.numpy()))
            check_signals()
            progress.update(len(batch.indices) + len(batch.unreadable))
    positions, classes, probabilities = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return positions, classes, probabilities, unreadable
