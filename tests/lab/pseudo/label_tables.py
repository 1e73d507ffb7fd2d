"""Small tables of pseudo-labels, and a reference implementation of the selection in Python."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lambdanets.records import write_json
from lambdanets_lab.pseudo.tables import DESCRIPTION, Labels, read_table, write_table

CLASSES = ("ant", "bee", "cat", "dog")
# Few values, so that ties are frequent.
CONFIDENCES = [0.0, 0.1, 0.25, 0.3, 0.5, 0.75, float(np.nextafter(np.float32(1), np.float32(0))), 1.0]


class Label(NamedTuple):
    key: str
    class_index: int
    confidence: float


def make_labels(count: int) -> list[Label]:
    """Return labels of classes in turn, with confidences that occur in all of them."""
    return [Label(f"n{i:06}", i % 4, CONFIDENCES[i // 4 % len(CONFIDENCES)]) for i in range(count)]


def write_labels(folder: Path, shards: Sequence[Sequence[Label]]) -> Path:
    """Write one table per shard into a folder: train-00000.parquet and so on."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, labels in enumerate(shards):
        class_indices = np.array([label.class_index for label in labels], np.int32)
        confidences = np.array([label.confidence for label in labels], np.float32)
        write_table(
            folder / f"train-{number:05}.parquet",
            [label.key for label in labels],
            np.arange(len(labels)),
            np.stack([class_indices, (class_indices + 1) % len(CLASSES)], axis=1),
            np.stack([confidences, np.zeros_like(confidences)], axis=1),
        )
    names = tuple(f"train-{number:05}" for number in range(len(shards)))
    write_json(folder / DESCRIPTION, asdict(Labels(CLASSES, {"model": "m", "weights": "w"}, 2, names)))
    return folder


def expected_copies(labels: Sequence[Label], confidence: float, per_class: int | None, seed: int) -> dict[str, int]:
    """Return the number of copies of each selected key, computed by sorting in Python."""

    def md5_number(label: Label) -> int:
        return int.from_bytes(hashlib.md5(f"{seed} {label.key}".encode()).digest(), "little")

    copies = {}
    confident_labels = [label for label in labels if np.float32(label.confidence) >= np.float32(confidence)]
    for class_index in {label.class_index for label in labels}:
        in_class = [label for label in confident_labels if label.class_index == class_index]
        if per_class is None:
            copies |= dict.fromkeys((label.key for label in in_class), 1)
        elif len(in_class) > per_class:
            ranked = sorted(in_class, key=lambda label: (-np.float32(label.confidence), md5_number(label)))
            copies |= dict.fromkeys((label.key for label in ranked[:per_class]), 1)
        elif in_class:
            base, extra = divmod(per_class, len(in_class))
            copies |= {label.key: base + (i < extra) for i, label in enumerate(sorted(in_class, key=md5_number))}
    return copies


def read_copies(folder: Path) -> dict[str, int]:
    """Return the number of copies of each key in a selection, and assert that no key occurs twice."""
    copies: dict[str, int] = {}
    for path in sorted(folder.glob("*.parquet")):
        table = read_table(path)
        rows = dict(zip(table["key"].to_pylist(), table["copies"].to_pylist(), strict=True))
        assert len(rows) == len(table)
        assert not rows.keys() & copies.keys()
        copies |= rows
    return copies
