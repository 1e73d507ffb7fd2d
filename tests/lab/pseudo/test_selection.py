"""Tables of pseudo-labels; their selection equals a reference implementation, and resumes."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commands import contents
from lambdanets.errors import InputError
from lambdanets.records import write_json
from lambdanets_lab.pseudo.tables import DESCRIPTION, Labels, read_table, select, write_table

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


@settings(max_examples=15, deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.text(st.characters(codec="utf-8"), max_size=20),
            st.integers(0, 3),
            st.sampled_from(CONFIDENCES) | st.floats(0, 1, width=32),
        ),
        max_size=40,
        unique_by=lambda row: row[0],
    ),
    confidence=st.sampled_from([0, 0.25, 0.3]),
    per_class=st.none() | st.integers(1, 12),
    seed=st.integers(0, 2**64 - 1),
    shards=st.integers(1, 5),
)
def test_selection_of_make_labels_equals_the_reference(tmp_path_factory, rows, confidence, per_class, seed, shards):
    folder = tmp_path_factory.mktemp("random")
    labels = [Label(*row) for row in rows]
    write_labels(folder / "in", [labels[i::shards] for i in range(shards)])
    expected = expected_copies(labels, confidence, per_class, seed)
    if not expected:
        with pytest.raises(InputError, match="confidence must be at most"):
            select(folder / "in", folder / "out", confidence=confidence, per_class=per_class, seed=seed)
        return
    selection = select(folder / "in", folder / "out", confidence=confidence, per_class=per_class, seed=seed)
    assert read_copies(folder / "out") == expected
    assert (selection.rows, selection.kept, selection.images) == (len(rows), len(expected), sum(expected.values()))


def test_interrupted_selection_resumes_byte_identically(tmp_path, monkeypatch):
    labels = make_labels(300)
    write_labels(tmp_path / "in", [labels[i::20] for i in range(20)])
    select(tmp_path / "in", tmp_path / "uninterrupted", per_class=50)
    out = tmp_path / "out"

    def interrupt(descriptor):
        if len(list(out.glob("*.parquet"))) >= 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", interrupt)  # called when a table is written
        with pytest.raises(KeyboardInterrupt):
            select(tmp_path / "in", out, per_class=50)
    written = {path: path.stat().st_mtime_ns for path in out.glob("*.parquet")}
    assert 3 <= len(written) < 20
    (out / ".train-00004.parquet.unfinished").write_bytes(b"half")
    with pytest.raises(InputError, match="per_class must be 50, got 60, since"):
        select(tmp_path / "in", out, per_class=60)
    selection = select(tmp_path / "in", out, per_class=50)
    assert written == {path: path.stat().st_mtime_ns for path in written}
    assert contents(out) == contents(tmp_path / "uninterrupted")
    assert select(tmp_path / "in", out, per_class=50) == selection


def test_damaged_labels_are_named_and_leave_no_folder(tmp_path):
    path = write_labels(tmp_path / "in", [make_labels(20), make_labels(20)]) / "train-00001.parquet"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InputError, match=r"train-00001.parquet is damaged"):
        select(tmp_path / "in", tmp_path / "out")
    assert not (tmp_path / "out").exists()
