import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from dataclasses import asdict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.label_tables import CONFIDENCES, ORIGIN, Label, expected_copies, random_labels, read_copies, write_labels
from lambdanets.cli import main
from lambdanets.data.pseudo_labels import ranking
from lambdanets.data.pseudo_labels.selection import Report, select
from lambdanets.data.pseudo_labels.tables import read_batches, read_table
from lambdanets.errors import InputError, is_user_fixable
from lambdanets.locks import locked_folder


@pytest.mark.parametrize("confidence", [0, 0.3, 0.5, 0.99999])
@pytest.mark.parametrize("per_class", [None, 1, 7, 40, 1000])
def test_selection_equals_the_reference_implementation(tmp_path, confidence, per_class):
    labels = random_labels(300)
    select(write_labels(tmp_path / "in", [labels]), tmp_path / "out", confidence=confidence, per_class=per_class)
    assert read_copies(tmp_path / "out") == expected_copies(labels, confidence, per_class, 0)


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
    report = select(folder / "in", folder / "out", confidence=confidence, per_class=per_class, seed=seed)
    assert read_copies(folder / "out") == expected
    assert (report.rows, report.kept, report.images) == (len(rows), len(expected), sum(expected.values()))


@pytest.mark.slow
def test_selection_that_spills_to_disk_equals_the_reference(tmp_path, monkeypatch):
    labels, out = random_labels(400_000), tmp_path / "out"
    write_labels(tmp_path / "in", [labels[:250_000], labels[250_000:250_001], labels[250_001:]])
    monkeypatch.setattr(ranking, "MEMORY_LIMIT", "30MB")
    monkeypatch.setattr(ranking, "THREADS", 2)  # each thread needs memory
    listings = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: listings.append([path.name for path in out.iterdir()]))
    select(tmp_path / "in", out, per_class=100_000, seed=1)
    assert ".duckdb.unfinished" in listings[0]
    assert not list(out.glob(".*"))
    assert read_copies(out) == expected_copies(labels, 0.3, 100_000, 1)


def test_error_for_too_little_memory_to_sort_says_what_to_free(tmp_path, monkeypatch):
    monkeypatch.setattr(ranking, "MEMORY_LIMIT", "1MB")
    monkeypatch.setattr(ranking, "THREADS", 2)
    write_labels(tmp_path / "in", [random_labels(20_000)])
    with pytest.raises(OSError, match=r"DuckDB cannot sort the rows .*; free memory or disk space") as raised:
        select(tmp_path / "in", tmp_path / "out", per_class=100)
    assert is_user_fixable(raised.value)
    assert raised.value.filename == str(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_copy_counts_within_a_class_differ_by_at_most_one(tmp_path):
    labels = random_labels(500, num_classes=3)
    select(write_labels(tmp_path / "in", [labels]), tmp_path / "out", per_class=100)
    copies = read_copies(tmp_path / "out")
    for class_index in range(3):
        class_labels = [label for label in labels if label.class_index == class_index]
        class_copies = [copies[label.key] for label in class_labels if label.key in copies]
        assert sum(class_copies) == 100
        assert max(class_copies) - min(class_copies) <= 1


def test_selected_rows_are_the_most_confident(tmp_path):
    labels = random_labels(500)
    select(write_labels(tmp_path / "in", [labels]), tmp_path / "out", per_class=20)
    selected = read_copies(tmp_path / "out")
    for class_index in range(4):
        class_labels = [label for label in labels if label.class_index == class_index]
        selected_confidences = [label.confidence for label in class_labels if label.key in selected]
        other_confidences = [label.confidence for label in class_labels if label.key not in selected]
        assert len(selected_confidences) <= 20
        assert max(other_confidences, default=0) <= min(selected_confidences, default=0.3)


def test_rows_with_the_minimum_confidence_are_selected(tmp_path):
    labels = [Label("a", 0, 0.3), Label("b", 0, float(np.nextafter(np.float32(0.3), np.float32(0)))), Label("c", 1, 1)]
    select(write_labels(tmp_path / "in", [labels]), tmp_path / "out", confidence=0.3)
    assert read_copies(tmp_path / "out") == {"a": 1, "c": 1}


def test_selection_does_not_depend_on_files_order_or_row_groups(tmp_path):
    labels = random_labels(240)
    shuffled = [labels[i] for i in np.random.default_rng(0).permutation(240)]
    write_labels(tmp_path / "one_table", [labels])
    write_labels(tmp_path / "many_tables", [shuffled[:10], [], shuffled[10:200], shuffled[200:]])
    write_labels(tmp_path / "row_groups", [labels])
    path = tmp_path / "row_groups/train-00000.parquet"
    table, origin = read_table(path)
    with pq.ParquetWriter(path, table.schema, store_schema=False) as file:
        file.write_table(table, row_group_size=7)
        file.add_key_value_metadata({b"lambdanets": origin.to_json()})
    for name in ("one_table", "many_tables", "row_groups"):
        select(tmp_path / name, tmp_path / f"{name}-out", per_class=30, seed=5)
    assert (
        read_copies(tmp_path / "one_table-out")
        == read_copies(tmp_path / "many_tables-out")
        == read_copies(tmp_path / "row_groups-out")
    )


def test_seed_determines_which_rows_get_more_copies(tmp_path):
    labels = [Label(f"k{i}", 0, 0.5 + i / 200) for i in range(100)]
    write_labels(tmp_path / "in", [labels[:40], labels[40:]])
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        select(tmp_path / "in", tmp_path / name, per_class=150, seed=seed)
    contents = [[path.read_bytes() for path in sorted((tmp_path / name).iterdir())] for name in "abc"]
    assert contents[0] == contents[1]
    repeated = [{key for key, copies in read_copies(tmp_path / name).items() if copies == 2} for name in "ac"]
    assert [len(keys) for keys in repeated] == [50, 50]
    assert 10 < len(repeated[0] & repeated[1]) < 40


def test_rejects_duplicate_keys(tmp_path):
    labels = [Label(f"k{i}", 0, 1.0) for i in range(3)]
    write_labels(tmp_path / "in", [labels, labels])
    with pytest.raises(InputError, match=r"keys of a dataset must be unique, got 'k\d' more than once"):
        select(tmp_path / "in", tmp_path / "out", per_class=3)
    assert not (tmp_path / "out").exists()


def test_report_lists_classes_with_too_few_or_no_confident_rows(tmp_path):
    labels = [Label(f"k{i}", 0, 0.9) for i in range(5)] + [Label("b", 1, 0.8), Label("c", 2, 0.1)]
    write_labels(tmp_path / "in", [labels[:3], labels[3:]])
    report = select(tmp_path / "in", tmp_path / "out", per_class=4)
    assert report == Report(rows=7, confident=6, kept=5, images=8, short=["bee"], without=["cat", "dog"])
    written = json.loads((tmp_path / "out/selection.json").read_text())
    assert {name: written[name] for name in asdict(report)} == asdict(report)
    assert (written["confidence"], written["per_class"], written["seed"]) == (0.3, 4, 0)
    assert written["teacher"] == ORIGIN.teacher
    assert written["classes"] == [
        {"class": "ant", "rows": 5, "confident": 5, "images": 4},
        {"class": "bee", "rows": 1, "confident": 1, "images": 4},
        {"class": "cat", "rows": 1, "confident": 0, "images": 0},
        {"class": "dog", "rows": 0, "confident": 0, "images": 0},
    ]
    for shard in written["shards"]:
        table, origin = read_table(tmp_path / f"out/{shard['name']}.parquet")
        assert (len(table), sum(table["copies"].to_pylist())) == (shard["kept"], shard["images"])
        assert origin == ORIGIN
    assert [shard["rows"] for shard in written["shards"]] == [3, 4]


def test_selected_rows_keep_their_columns_and_order(tmp_path):
    labels = random_labels(50)
    select(write_labels(tmp_path / "in", [labels]), tmp_path / "out")
    rows = read_table(tmp_path / "in/train-00000.parquet")[0].to_pylist()
    selected_rows = read_table(tmp_path / "out/train-00000.parquet")[0].to_pylist()
    expected = [row | {"copies": 1} for row in rows if row["confidence"] >= np.float32(0.3)]
    assert selected_rows == expected
    assert len(expected) > 20


def test_shard_without_selected_rows_has_an_empty_table(tmp_path):
    write_labels(tmp_path / "in", [[Label("a", 0, 0.1)], [Label("b", 0, 0.9)]])
    select(tmp_path / "in", tmp_path / "out")
    assert len(read_table(tmp_path / "out/train-00000.parquet")[0]) == 0


def test_confidence_of_negative_zero_is_treated_as_zero(tmp_path):
    path = write_labels(tmp_path / "in", [[Label("a", 0, 0.0), Label("b", 0, 0.5)]]) / "train-00000.parquet"
    table, origin = read_table(path)
    table = table.set_column(3, table.schema.field(3), pa.array([-0.0, 0.5], pa.float32()))
    with pq.ParquetWriter(path, table.schema, store_schema=False) as file:
        file.write_table(table)
        file.add_key_value_metadata({b"lambdanets": origin.to_json()})
    select(tmp_path / "in", tmp_path / "out", confidence=0, per_class=1)
    assert read_copies(tmp_path / "out") == {"b": 1}


def test_rejects_selecting_into_a_folder_in_use(tmp_path):
    write_labels(tmp_path / "in", [random_labels(30)])
    with locked_folder(tmp_path / "out"), pytest.raises(InputError, match="out is in use by process"):
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
    written = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    assert {path.name for path in written} < {f"train-{i:05}.parquet" for i in range(20)}
    assert len(written) >= 3
    (out / ".train-00004.parquet.1.unfinished").write_bytes(b"half")
    (out / ".duckdb.unfinished").mkdir()
    (out / ".duckdb.unfinished/duckdb_temp_storage_DEFAULT-0.tmp").write_bytes(b"temporary data of a killed process")
    report = select(tmp_path / "in", out, per_class=50)
    for path, modified in written.items():
        assert path.stat().st_mtime_ns == modified
    expected, actual = (
        {path.name: path.read_bytes() for path in folder.iterdir()} for folder in (tmp_path / "uninterrupted", out)
    )
    assert actual == expected
    monkeypatch.setattr(ranking, "read_batches", None)  # a finished selection does not read the labels
    assert select(tmp_path / "in", out, per_class=50) == report


@pytest.mark.parametrize("per_class", [None, 5])
def test_ctrl_c_interrupts_a_query(tmp_path, monkeypatch, per_class):
    write_labels(tmp_path / "in", [random_labels(30)])
    scans = []

    def read_endless_batches(*arguments):
        scans.append(arguments)
        (batch,) = read_batches(*arguments)
        yield batch
        if len(scans) == (1 if per_class is None else 2):
            os.kill(os.getpid(), signal.SIGINT)
            yield from itertools.repeat(batch)

    monkeypatch.setattr(ranking, "read_batches", read_endless_batches)
    with pytest.raises(KeyboardInterrupt):
        select(tmp_path / "in", tmp_path / "out", per_class=per_class)
    assert not (tmp_path / "out").exists()


@pytest.mark.forks
def test_killed_selection_resumes(tmp_path):
    labels = random_labels(3000)
    write_labels(tmp_path / "in", [labels[i::40] for i in range(40)])

    def kill_after_20_tables(descriptor):
        if len(list((tmp_path / "out").glob("train*"))) >= 20:
            os.kill(os.getpid(), signal.SIGKILL)

    def select_until_killed():
        os.fsync = kill_after_20_tables  # called when a table is written
        select(tmp_path / "in", tmp_path / "out", per_class=500)

    process = multiprocessing.get_context("fork").Process(target=select_until_killed)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not (tmp_path / "out/selection.json").exists()
    select(tmp_path / "in", tmp_path / "out", per_class=500)
    assert read_copies(tmp_path / "out") == expected_copies(labels, 0.3, 500, 0)
    assert not list((tmp_path / "out").glob(".*"))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can reset the peak memory of a process")
def test_selecting_two_million_rows_needs_less_than_600_mib(tmp_path):
    script = """
import sys
from pathlib import Path
import numpy as np, pyarrow as pa
from lambdanets.cli.pseudo_label import peak_memory
from lambdanets.data.pseudo_labels import ranking
from lambdanets.data.pseudo_labels.selection import select
from lambdanets.data.pseudo_labels.tables import Origin, write_description, write_table
ranking.THREADS = 2
folder, origin, n = Path(sys.argv[1]), Origin(tuple(f"c{i}" for i in range(1000)), {}, 1), 250_000
random = np.random.default_rng(0)
for shard in range(8):
    classes = np.where(random.random(n) < 0.5, 0, random.integers(0, 1000, n))
    keys = pa.array(np.arange(shard * n, shard * n + n)).cast(pa.string())
    write_table(folder / f"s{shard}.parquet", origin, keys=keys, positions=np.arange(n), classes=classes[:, None],
                probabilities=np.where(random.random(n) < 0.9, 1, random.random(n))[:, None])
write_description(folder, origin)
Path("/proc/self/clear_refs").write_text("5")  # reset the peak memory
before = peak_memory()
report = select(folder, folder / "out", per_class=1500)
print(report.images, (peak_memory() - before) >> 20)
"""
    process = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    images, mebibytes = map(int, process.stdout.split())
    assert images == 1500 * 1000
    assert mebibytes < 600
    assert not process.stderr


def test_select_command_prints_report_throughput_and_memory(tmp_path, capsys):
    labels = [Label(f"k{i}", 0, 0.9) for i in range(5)] + [Label("b", 1, 0.8), Label("c", 2, 0.1)]
    write_labels(tmp_path / "in", [labels])
    assert main(["pseudo-label", "select", str(tmp_path / "in"), str(tmp_path / "out"), "--per-class", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == [
        "7 rows, 6 with confidence of at least 0.3",
        "5 kept, 8 images counting repeats",
        "classes with fewer than 4 (1): bee",
        "classes with none (2): cat, dog",
    ]
    assert "rows/s, peak memory" in lines[4]
    assert lines[5] == f"written to {tmp_path / 'out'}: one table per shard, and selection.json"
