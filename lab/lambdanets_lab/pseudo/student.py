"""Trains a student on labeled and pseudo-labeled images."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from lambdanets.data.batches import Batch, Batches
from lambdanets.data.labeled_images import LabeledImages, image_batches
from lambdanets.data.order import WINDOW, BatchSlice, Order
from lambdanets.data.shards import open_shards
from lambdanets.errors import InputError, first_few
from lambdanets.files import nfc
from lambdanets.tasks.classification import ClassificationTask, make_transform
from lambdanets_lab.pseudo.tables import SELECTION, read_selection, read_table


class PseudoLabeledImages:
    """The images of a selection, counting copies, with labels in the student's classes.

    Images are ordered by shard; `shard_sizes` has the number of images of each shard. The table of a shard is read on
    first use, and the most recently used tables are cached.

    soft: labels are the teacher's probabilities, float32 (classes,); probability that is not stored is divided equally
    among the other classes. Otherwise labels are the most probable class.

    Raises InputError if the selection or the shards are missing or damaged, or if they do not match.
    """

    def __init__(self, location: str, folder: Path, classes: Sequence[str], *, soft: bool) -> None:
        selection = read_selection(folder)
        images = replace(open_shards(location)["train"], classes=())
        class_index = {nfc(name): number for number, name in enumerate(classes)}
        if unknown := [name for name in selection.classes if nfc(name) not in class_index]:
            raise InputError(
                f"classes of the teacher of {folder} must be classes of the labeled images, such as "
                f"{first_few(classes)}, got {unknown[0]!r}"
            )
        if selection.teacher.get("images") != images.fingerprint:
            raise InputError(f"{folder} has labels of other shards than those in pseudo_images; check pseudo_images")
        self.shard_sizes = [*selection.shards.values()]
        self.fingerprint = sha256((folder / SELECTION).read_bytes()).hexdigest()
        self._folder, self._top_k, self._images = folder, selection.top, images
        self._names = [*selection.shards]
        self._class_index = np.array([class_index[nfc(name)] for name in selection.classes])
        self._num_classes, self._soft = len(classes), soft
        self._ends = np.cumsum(self.shard_sizes, dtype=np.int64)
        self._first_indices = np.concatenate([[0], np.cumsum(images.shard_sizes)])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def load(self, index: int) -> tuple[Image.Image, int | np.ndarray]:
        """Return a decoded image and its label. Raises UnreadableImage."""
        table, row, image_index = self._find(index)
        image, _ = self._images.load(image_index)
        classes = self._class_index[table.classes[row]]
        if not self._soft:
            return image, int(classes[0])
        probabilities = table.probabilities[row].astype(np.float64)
        num_other_classes = self._num_classes - len(classes)
        remaining = max(0.0, 1 - probabilities.sum())
        label = np.full(self._num_classes, remaining / num_other_classes if num_other_classes else 0.0)
        label[classes] = probabilities
        return image, (label / label.sum()).astype(np.float32)

    def name(self, index: int) -> str:
        """Return the path or URL of the shard and the name of the image in it."""
        return self._images.name(self._find(index)[2])

    def _find(self, index: int) -> tuple["_Table", int, int]:
        """Return the table of an image, its row in the table, and its index in the shards."""
        shard = int(np.searchsorted(self._ends, index, side="right"))
        table = _open_table(self._folder / f"{self._names[shard]}.parquet", self._top_k)
        row = int(table.rows[index - (self._ends[shard] - self.shard_sizes[shard])])
        return table, row, int(self._first_indices[shard] + table.positions[row])


class _Table:
    """The table of a shard in memory. rows: row of each image, repeated for copies."""

    def __init__(self, path: Path, top_k: int) -> None:
        table = read_table(path)
        self.positions = table["position"].to_numpy()
        self.rows = np.repeat(np.arange(len(table)), table["copies"].to_numpy())
        self.classes, self.probabilities = (
            table[name].combine_chunks().flatten().to_numpy(zero_copy_only=False).reshape(-1, top_k)
            for name in ("classes", "probabilities")
        )


_open_table = lru_cache(2 * WINDOW)(_Table)  # as many as shards that are open


@dataclass(frozen=True)
class StudentImages:
    """The labeled and then the pseudo-labeled images. Labels are class probabilities, float32 (classes,).

    smoothing: label smoothing, which applies to labels that are a class.
    """

    labeled: LabeledImages
    pseudo: PseudoLabeledImages
    num_classes: int
    smoothing: float

    def __len__(self) -> int:
        return len(self.labeled) + len(self.pseudo)

    def load(self, index: int) -> tuple[Image.Image, np.ndarray]:
        first = len(self.labeled)
        image, label = self.labeled.load(index) if index < first else self.pseudo.load(index - first)
        if isinstance(label, np.ndarray):
            return image, label
        target = np.full(self.num_classes, self.smoothing / self.num_classes, np.float32)
        target[label] += 1 - self.smoothing
        return image, target


class StudentOrder(Order):
    """The order of labeled images, to which each step adds pseudo_batch_size of the pseudo-labeled images after them.

    The pseudo-labeled images have their own epochs on each rank.
    """

    def __init__(
        self, images: StudentImages, batch_size: int, pseudo_batch_size: int, seed: int, batch_slice: BatchSlice
    ) -> None:
        ranks = batch_slice.world_size
        images_per_rank = batch_slice.min_micro_batch * batch_slice.accumulation_steps
        min_images = max(1, ranks * (images_per_rank - pseudo_batch_size // ranks))
        super().__init__(images.labeled, batch_size, seed, batch_slice, min_images)
        if len(images.pseudo) < ranks:
            raise InputError(
                f"number of pseudo-labeled images must be at least {ranks}, one per rank, got {len(images.pseudo)}"
            )
        self._pseudo = Order(images.pseudo, pseudo_batch_size, seed + 1, batch_slice)
        self._pseudo_epoch_size = batch_slice.count(len(images.pseudo))

    def step(self, epoch: int, step: int) -> tuple[list[tuple[int, int]], int]:
        keys, count = super().step(epoch, step)
        size = self._pseudo.batch_size
        start = (epoch * self.steps_per_epoch + step) * size
        for position in range(self.batch_slice.count(start), self.batch_slice.count(start + size)):
            pseudo_epoch, position = divmod(position, self._pseudo_epoch_size)
            keys.append((pseudo_epoch, self.num_images + int(self._pseudo.epoch(pseudo_epoch)[position])))
        return keys, count + size


class StudentTask(ClassificationTask):
    """Classification with pseudo-labeled images."""

    images: StudentImages

    def __init__(self, recipe: Any) -> None:
        super().__init__(recipe)
        labels, soft = Path(recipe.pseudo_labels), recipe.pseudo_targets == "soft"
        pseudo = PseudoLabeledImages(recipe.pseudo_images, labels, self.classes, soft=soft)
        self.images = StudentImages(self.training, pseudo, len(self.classes), recipe.label_smoothing)
        self.fingerprint += pseudo.fingerprint

    def batches(self, **options: Any) -> Batches:
        recipe, batch_slice = self.recipe, options["batch_slice"]
        order = StudentOrder(self.images, recipe.batch_size, recipe.pseudo_batch_size, recipe.seed, batch_slice)
        return image_batches(self.images, make_transform(recipe), order=order, **options)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return the losses of a batch whose labels are class probabilities."""
        logits = self.logits(batch)
        loss = F.cross_entropy(logits, batch.targets, reduction="sum")
        return {"loss": loss, "top1": (logits.argmax(1) == batch.targets.argmax(1)).sum()}
