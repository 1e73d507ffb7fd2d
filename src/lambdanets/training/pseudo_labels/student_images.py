"""The images that a student learns from, with a teacher's labels: a selection joined to shards by key."""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from lambdanets.data.images import UnreadableImage
from lambdanets.data.order import WINDOW
from lambdanets.data.shards.images import ShardedImages, open_shards
from lambdanets.errors import InputError
from lambdanets.training.pseudo_labels.selection import SELECTION, read_selection
from lambdanets.training.pseudo_labels.tables import read_table


class PseudoLabelledImages:
    """A selection's images, each as often as it says, with labels of the student's classes.

    soft: the label is the teacher's distribution, float32 (classes,), in which the classes without a row share what is
    left evenly; else the most probable class. Numbers run through the shards in order, so that `groups` are the images
    of each. A shard's table is read when an image of it is first asked for; the last few are kept.
    """

    def __init__(self, images: ShardedImages, selection: Path, classes: Sequence[str], soft: bool) -> None:
        content = read_selection(selection)
        known = {name: number for number, name in enumerate(classes)}
        taught = [entry["class"] for entry in content.classes]
        if unknown := [name for name in taught if name not in known]:
            raise InputError(
                f"the teacher of {selection} has the class {unknown[0]!r}, which the labelled images have not; "
                f"they have {', '.join(list(classes)[:5])}"
            )
        if content.teacher.get("images") not in (None, images.fingerprint):
            raise InputError(f"{selection} has the labels of other images than these shards")
        places = {Path(name).stem: place for place, name in enumerate(images.shard_names)}
        self._names = [shard["name"] for shard in content.shards]
        if strange := [name for name in self._names if name not in places]:
            raise InputError(f"{selection} has labels for the shard {strange[0]!r}, which is not among these")
        self.groups = [shard["images"] for shard in content.shards]
        self._shards = [places[name] for name in self._names]
        self._firsts = np.concatenate([[0], np.cumsum(images.groups)])
        self._images = images
        self._folder = selection
        self._numbers = np.array([known[name] for name in taught])
        self._classes = len(classes)
        self._soft = soft
        self._ends = np.cumsum(self.groups, dtype=np.int64)
        self._kept: OrderedDict[int, _Table] = OrderedDict()
        self.fingerprint = hashlib.sha256((selection / SELECTION).read_bytes()).hexdigest()

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def labels(self) -> np.ndarray:
        """The most probable class of every image, int64 (n,), read from all tables at each call."""
        tables = (self._table(group) for group in range(len(self.groups)))
        return np.concatenate([self._numbers[table.classes[table.rows, 0]] for table in tables])

    def load(self, index: int) -> tuple[Image.Image, int | np.ndarray]:
        """Decode an image and give its label. Raises UnreadableImage, also where the shard has no image of its key."""
        table, row, number = self._find(index)
        image, _ = self._images.load(number)
        classes = self._numbers[table.classes[row]]
        if not self._soft:
            return image, int(classes[0])
        probabilities = table.probabilities[row].astype(np.float64)
        others = self._classes - len(classes)
        left = max(0.0, 1 - probabilities.sum())
        label = np.full(self._classes, left / others if others else 0.0)
        label[classes] = probabilities
        return image, (label / label.sum()).astype(np.float32)

    def name(self, index: int) -> str:
        """The shard's path or URL and the image's name."""
        try:
            return self._images.name(self._find(index)[2])
        except UnreadableImage as error:
            return error.path

    def _find(self, index: int) -> tuple["_Table", int, int]:
        group = int(np.searchsorted(self._ends, index, side="right"))
        table = self._table(group)
        row = int(table.rows[index - (self._ends[group] - self.groups[group])])
        first = int(self._firsts[self._shards[group]])
        if table.places is None:
            count = self._images.groups[self._shards[group]]
            table.places = {self._images.key(first + place): place for place in range(count)}
        place = table.places.get(table.keys[row])
        if place is None:
            raise UnreadableImage(f"{self._folder}/{self._names[group]}.parquet", f"no image has {table.keys[row]!r}")
        return table, row, first + place

    def _table(self, group: int) -> "_Table":
        table = self._kept.get(group)
        if table is None:
            table = self._kept[group] = _Table(self._folder / f"{self._names[group]}.parquet")
            if len(table.rows) != self.groups[group]:
                raise InputError(f"{self._folder}/{self._names[group]}.parquet changed after it was selected")
            if len(self._kept) > 2 * WINDOW:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(group)
        return table

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_kept": OrderedDict()}


class _Table:
    """A shard's rows in memory. rows: the row of each image, repeated for copies; places: of keys in the shard."""

    def __init__(self, path: Path) -> None:
        table, origin = read_table(path)
        self.keys: list[str] = table["key"].to_pylist()
        self.classes = _matrix(table["classes"], origin.top)
        self.probabilities = _matrix(table["probabilities"], origin.top)
        self.rows = np.repeat(np.arange(len(self.keys)), table["copies"].to_numpy())
        self.places: dict[str, int] | None = None


def _matrix(column: Any, width: int) -> np.ndarray:
    return column.combine_chunks().flatten().to_numpy(zero_copy_only=False).reshape(-1, width)


def open_student_images(location: str, selection: Path, classes: Sequence[str], *, soft: bool) -> PseudoLabelledImages:
    """The images of a selection in a folder, from the shards in a folder or at a URL.

    Raises InputError where either is missing or damaged, and where they do not belong together.
    """
    parts, _ = open_shards(location)
    return PseudoLabelledImages(parts["train"].unlabelled(), selection, classes, soft)
