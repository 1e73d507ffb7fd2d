"""Small tables of pseudo-labels, and what is to be selected of them by plain Python."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lambdanets.training.pseudo_labels.tables import Origin, read_table, write_description, write_table

ORIGIN = Origin(("ant", "bee", "cat", "dog"), {"model": "m", "weights": "w"}, 2)


# Few values, so that ties are frequent.
CONFIDENCES = [0.0, 0.1, 0.25, 0.3, 0.5, 0.75, float(np.nextafter(np.float32(1), np.float32(0))), 1.0]


class Label(NamedTuple):
    key: str
    class_number: int
    confidence: float


def some_labels(count: int, seed: int = 0, classes: int = 4) -> list[Label]:
    """Labels of random classes, some more frequent, and confidences, half of them among a few values."""
    random = np.random.default_rng(seed)
    numbers = random.choice(classes, count, p=random.dirichlet(np.ones(classes)))
    chosen = np.where(random.random(count) < 0.5, random.choice(CONFIDENCES, count), random.random(count))
    return [Label(f"n{i:06}", int(c), float(p)) for i, (c, p) in enumerate(zip(numbers, chosen, strict=True))]


def write_labels(folder: Path, shards: Sequence[Sequence[Label]], origin: Origin = ORIGIN) -> Path:
    """A folder with a table for each shard: train-00000.parquet and so on."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, labels in enumerate(shards):
        first = np.array([label.class_number for label in labels], np.int32)
        best = np.array([label.confidence for label in labels], np.float32)
        write_table(
            folder / f"train-{number:05}.parquet",
            origin,
            keys=[label.key for label in labels],
            positions=np.arange(len(labels)),
            classes=np.stack([first, (first + 1) % len(origin.classes)], axis=1),
            probabilities=np.stack([best, np.zeros_like(best)], axis=1),
        )
    write_description(folder, origin)
    return folder


def expected(labels: Sequence[Label], confidence: float, per_class: int | None, seed: int) -> dict[str, int]:
    """Copies by key, from sorted lists."""

    def chance(label: Label) -> int:
        return int.from_bytes(hashlib.md5(f"{seed} {label.key}".encode()).digest(), "little")

    copies = {}
    for number in {label.class_number for label in labels}:
        mine = [x for x in labels if x.class_number == number and np.float32(x.confidence) >= np.float32(confidence)]
        if per_class is None:
            copies |= dict.fromkeys((x.key for x in mine), 1)
        elif len(mine) > per_class:
            best = sorted(mine, key=lambda x: (-np.float32(x.confidence), chance(x)))
            copies |= dict.fromkeys((x.key for x in best[:per_class]), 1)
        elif mine:
            base, extra = divmod(per_class, len(mine))
            copies |= {x.key: base + (i < extra) for i, x in enumerate(sorted(mine, key=chance))}
    return copies


def copies_in(folder: Path) -> dict[str, int]:
    """Copies by key in what was selected; a key that is there twice fails."""
    copies: dict[str, int] = {}
    for path in sorted(folder.glob("*.parquet")):
        table, _ = read_table(path)
        rows = dict(zip(table["key"].to_pylist(), table["copies"].to_pylist(), strict=True))
        assert len(rows) == len(table)
        assert not rows.keys() & copies.keys()
        copies |= rows
    return copies
