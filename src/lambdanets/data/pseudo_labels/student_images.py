"""Pseudo-labeled training images of a student: joins a selection of labels to the images in shards by key."""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from lambdanets.data.images import UnreadableImage
from lambdanets.data.order import WINDOW
from lambdanets.data.pseudo_labels.selection import SELECTION, read_selection
from lambdanets.data.pseudo_labels.tables import read_table
from lambdanets.data.shards.images import ShardedImages, open_shards
from lambdanets.errors import InputError
from lambdanets.files import nfc


class PseudoLabeledImages:
    """The images of a selection, counting copies, with labels in the student's classes.

    Images are ordered by shard; `shard_sizes` has the number of images of each shard. The table of a shard is read on
    first use, and the most recently used tables are cached.

    soft: labels are the teacher's probabilities, float32 (classes,); probability that is not stored is divided equally
    among the other classes. Otherwise labels are the most probable class.
    """

    def __init__(self, images: ShardedImages, selection: Path, classes: Sequence[str], soft: bool) -> None:
        content = read_selection(selection)
        class_index = {nfc(name): number for number, name in enumerate(classes)}
        teacher_classes = [nfc(entry["class"]) for entry in content.classes]
        if unknown := [name for name in teacher_classes if name not in class_index]:
            raise InputError(
                f"classes of the teacher of {selection} must be classes of the labeled images, such as "
                f"{', '.join(list(classes)[:5])}, got {unknown[0]!r}"
            )
        if content.teacher.get("images") not in (None, images.fingerprint):
            raise InputError(f"{selection} has labels of other shards than those in pseudo_images; check pseudo_images")
        shard_index = {Path(name).stem: number for number, name in enumerate(images.shard_names)}
        self._names = [shard["name"] for shard in content.shards]
        if unknown := [name for name in self._names if name not in shard_index]:
            raise InputError(
                f"{selection} has labels of the shard {unknown[0]!r}, which does not exist; check pseudo_images"
            )
        self.shard_sizes = [shard["images"] for shard in content.shards]
        self._shard_indices = [shard_index[name] for name in self._names]
        self._first_indices = np.concatenate([[0], np.cumsum(images.shard_sizes)])
        self._images = images
        self._folder = selection
        self._class_index = np.array([class_index[name] for name in teacher_classes])
        self._num_classes = len(classes)
        self._soft = soft
        self._ends = np.cumsum(self.shard_sizes, dtype=np.int64)
        self._tables: OrderedDict[int, _Table] = OrderedDict()
        self.fingerprint = hashlib.sha256((selection / SELECTION).read_bytes()).hexdigest()

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def labels(self) -> np.ndarray:
        """Most probable class of each image, int64 (n,). Each call reads all tables."""
        tables = (self._table(shard) for shard in range(len(self.shard_sizes)))
        return np.concatenate([self._class_index[table.classes[table.rows, 0]] for table in tables])

    def load(self, index: int) -> tuple[Image.Image, int | np.ndarray]:
        """Return a decoded image and its label. Raises UnreadableImage, also if the shard has no image with its key."""
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
        try:
            return self._images.name(self._find(index)[2])
        except UnreadableImage as error:
            return error.path

    def _find(self, index: int) -> tuple["_Table", int, int]:
        """Return the table of an image, its row in the table, and its index in the shards."""
        shard = int(np.searchsorted(self._ends, index, side="right"))
        table = self._table(shard)
        row = int(table.rows[index - (self._ends[shard] - self.shard_sizes[shard])])
        first = int(self._first_indices[self._shard_indices[shard]])
        if table.positions is None:
            count = self._images.shard_sizes[self._shard_indices[shard]]
            table.positions = {self._images.key(first + position): position for position in range(count)}
        position = table.positions.get(table.keys[row])
        if position is None:
            raise UnreadableImage(
                f"{self._folder}/{self._names[shard]}.parquet", f"no image has the key {table.keys[row]!r}"
            )
        return table, row, first + position

    def _table(self, shard: int) -> "_Table":
        table = self._tables.get(shard)
        if table is None:
            table = self._tables[shard] = _Table(self._folder / f"{self._names[shard]}.parquet")
            if len(table.rows) != self.shard_sizes[shard]:
                raise InputError(
                    f"{self._folder}/{self._names[shard]}.parquet has changed since the selection; select again"
                )
            if len(self._tables) > 2 * WINDOW:
                self._tables.popitem(last=False)
        else:
            self._tables.move_to_end(shard)
        return table

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_tables": OrderedDict()}


class _Table:
    """The table of a shard in memory.

    rows: row of each image, repeated for copies. positions: position in the shard by key, filled in on first use.
    """

    def __init__(self, path: Path) -> None:
        table, origin = read_table(path)
        self.keys: list[str] = table["key"].to_pylist()
        self.classes = _matrix(table["classes"], origin.top_k)
        self.probabilities = _matrix(table["probabilities"], origin.top_k)
        self.rows = np.repeat(np.arange(len(self.keys)), table["copies"].to_numpy())
        self.positions: dict[str, int] | None = None


def _matrix(column: Any, width: int) -> np.ndarray:
    return column.combine_chunks().flatten().to_numpy(zero_copy_only=False).reshape(-1, width)


def open_student_images(location: str, selection: Path, classes: Sequence[str], *, soft: bool) -> PseudoLabeledImages:
    """Open the images of a selection, from shards in a folder or at a URL.

    Raises InputError if the selection or the shards are missing or damaged, or if they do not match.
    """
    splits, _ = open_shards(location)
    return PseudoLabeledImages(splits["train"].without_labels(), selection, classes, soft)
