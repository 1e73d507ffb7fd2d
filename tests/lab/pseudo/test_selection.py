"""The selection of pseudo-labels equals a reference implementation, and resumes."""

import itertools
import os
import signal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.pseudo.label_tables import CONFIDENCES, Label, expected_copies, random_labels, read_copies, write_labels
from lambdanets.errors import InputError, is_user_fixable
from lambdanets.work import WorkFolder
from lambdanets_lab.pseudo import tables
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
def test_selection_of_random_labels_equals_the_reference(tmp_path_factory, rows, confidence, per_class, seed, shards):
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


@pytest.mark.slow
def test_selection_that_spills_to_disk_equals_the_reference(tmp_path, monkeypatch):
    labels, out = random_labels(400_000), tmp_path / "out"
    write_labels(tmp_path / "in", [labels[:250_000], labels[250_000:250_001], labels[250_001:]])
    monkeypatch.setattr(tables, "MEMORY_LIMIT", "30MB")
    monkeypatch.setattr(tables, "THREADS", 2)  # each thread needs memory
    listings = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: listings.append([path.name for path in out.iterdir()]))
    select(tmp_path / "in", out, per_class=100_000, seed=1)
    assert ".duckdb.unfinished" in listings[0]
    assert not list(out.glob(".*"))
    assert read_copies(out) == expected_copies(labels, 0.3, 100_000, 1)


def test_error_for_too_little_memory_to_sort_says_what_to_free(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "MEMORY_LIMIT", "1MB")
    monkeypatch.setattr(tables, "THREADS", 2)
    write_labels(tmp_path / "in", [random_labels(20_000)])
    with pytest.raises(OSError, match=r"DuckDB cannot sort the rows .*; free memory or disk space") as raised:
        select(tmp_path / "in", tmp_path / "out", per_class=100)
    assert is_user_fixable(raised.value)
    assert not (tmp_path / "out").exists()


def test_selection_does_not_depend_on_files_or_their_order(tmp_path):
    labels = random_labels(240)
    shuffled = [labels[i] for i in np.random.default_rng(0).permutation(240)]
    write_labels(tmp_path / "one_table", [labels])
    write_labels(tmp_path / "many_tables", [shuffled[:10], [], shuffled[10:200], shuffled[200:]])
    for name in ("one_table", "many_tables"):
        select(tmp_path / name, tmp_path / f"{name}-out", per_class=30, seed=5)
    assert read_copies(tmp_path / "one_table-out") == read_copies(tmp_path / "many_tables-out")


def test_rejects_keys_that_occur_twice_at_the_cutoff(tmp_path):
    write_labels(tmp_path / "in", [[Label("a", 0, 0.9)], [Label("a", 0, 0.9)]])
    with pytest.raises(InputError, match=r"keys in .* must be unique"):
        select(tmp_path / "in", tmp_path / "out", per_class=1)


def test_rejects_selecting_into_a_folder_in_use(tmp_path):
    write_labels(tmp_path / "in", [random_labels(30)])
    with WorkFolder(tmp_path / "out").open(), pytest.raises(InputError, match="out is in use by process"):
        select(tmp_path / "in", tmp_path / "out")


def test_interrupted_selection_resumes_byte_identically(tmp_path, monkeypatch):
    labels = random_labels(300)
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
    with pytest.raises(InputError, match="has a selection with per_class 50, not 60"):
        select(tmp_path / "in", out, per_class=60)
    selection = select(tmp_path / "in", out, per_class=50)
    assert written == {path: path.stat().st_mtime_ns for path in written}
    expected, actual = (
        {path.name: path.read_bytes() for path in folder.iterdir()} for folder in (tmp_path / "uninterrupted", out)
    )
    assert actual == expected
    monkeypatch.setattr(tables, "read_table", None)  # a finished selection does not read the labels
    assert select(tmp_path / "in", out, per_class=50) == selection


@pytest.mark.parametrize("per_class", [None, 5])
def test_ctrl_c_interrupts_a_query(tmp_path, monkeypatch, per_class):
    write_labels(tmp_path / "in", [random_labels(30)])
    scans = []

    class EndlessTable:
        def __init__(self, *arguments):
            self.table = read_table(*arguments)

        def to_batches(self):
            scans.append(self)
            yield from (batches := self.table.to_batches())
            if len(scans) == (1 if per_class is None else 2):
                os.kill(os.getpid(), signal.SIGINT)
                yield from itertools.repeat(batches[0])

    monkeypatch.setattr(tables, "read_table", EndlessTable)
    with pytest.raises(KeyboardInterrupt):
        select(tmp_path / "in", tmp_path / "out", per_class=per_class)
    assert not (tmp_path / "out").exists()


def test_damaged_labels_are_named_and_leave_no_folder(tmp_path):
    path = write_labels(tmp_path / "in", [random_labels(20), random_labels(20)]) / "train-00001.parquet"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InputError, match=r"train-00001.parquet is damaged"):
        select(tmp_path / "in", tmp_path / "out")
    assert not (tmp_path / "out").exists()
