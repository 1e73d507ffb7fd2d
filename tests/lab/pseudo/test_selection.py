"""Tables of pseudo-labels; their selection equals a reference implementation, and resumes."""

import contextlib
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.pseudo.label_tables import CONFIDENCES, Label, expected_copies, make_labels, read_copies, write_labels
from lambdanets.errors import InputError
from lambdanets_lab.pseudo.tables import read_table, select


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
    (out / ".train-00004.parquet.1.unfinished").write_bytes(b"half")
    (out / ".duckdb.unfinished").mkdir()
    with pytest.raises(InputError, match="per_class must be 50, got 60, since"):
        select(tmp_path / "in", out, per_class=60)
    selection = select(tmp_path / "in", out, per_class=50)
    assert written == {path: path.stat().st_mtime_ns for path in written}
    expected, actual = (
        {path.name: path.read_bytes() for path in folder.iterdir()} for folder in (tmp_path / "uninterrupted", out)
    )
    assert actual == expected
    assert select(tmp_path / "in", out, per_class=50) == selection


def test_damaged_labels_are_named_and_leave_no_folder(tmp_path):
    path = write_labels(tmp_path / "in", [make_labels(20), make_labels(20)]) / "train-00001.parquet"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InputError, match=r"train-00001.parquet is damaged"):
        select(tmp_path / "in", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_changed_byte_in_any_row_is_detected(tmp_path):
    path = write_labels(tmp_path, [[Label(f"k{i}", i % 4, 0.5) for i in range(300)]]) / "train-00000.parquet"
    content = path.read_bytes()
    expected = read_table(path)
    for offset in range(0, len(content), 97):
        path.write_bytes(content[:offset] + bytes([content[offset] ^ 0x55]) + content[offset + 1 :])
        actual = None
        with contextlib.suppress(InputError):
            actual = read_table(path)
        assert actual is None or actual.equals(expected)  # not detected only in bytes outside the rows
