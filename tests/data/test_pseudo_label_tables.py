import contextlib
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.label_tables import ORIGIN, Label, write_labels
from lambdanets.data.pseudo_labels.tables import (
    LABEL_SCHEMA,
    Origin,
    open_labels,
    read_batches,
    read_table,
    write_description,
    write_table,
)
from lambdanets.errors import InputError


def make_columns(**changes):
    """Return the columns of two valid rows, with some columns replaced."""
    valid = {
        "keys": ["a", "b"],
        "positions": np.array([0, 2]),
        "classes": np.array([[3, 0], [1, 2]]),
        "probabilities": np.array([[0.75, 0.25], [0.5, 0.125]]),
    }
    return valid | changes


def test_table_round_trip(tmp_path):
    write_table(tmp_path / "t.parquet", ORIGIN, **make_columns())
    table, origin = read_table(tmp_path / "t.parquet")
    assert origin == ORIGIN
    assert table.schema.equals(LABEL_SCHEMA)
    assert table.to_pylist() == [
        {"key": "a", "position": 0, "class": 3, "confidence": 0.75, "classes": [3, 0], "probabilities": [0.75, 0.25]},
        {"key": "b", "position": 2, "class": 1, "confidence": 0.5, "classes": [1, 2], "probabilities": [0.5, 0.125]},
    ]


def test_empty_table_round_trip(tmp_path):
    write_labels(tmp_path, [[]])
    assert len(read_table(tmp_path / "train-00000.parquet")[0]) == 0


def test_class_names_and_teacher_are_in_the_parquet_metadata(tmp_path):
    write_table(tmp_path / "t.parquet", ORIGIN, **make_columns())
    metadata = json.loads(pq.read_metadata(tmp_path / "t.parquet").metadata[b"lambdanets"])
    assert metadata == {"classes": ["ant", "bee", "cat", "dog"], "teacher": {"model": "m", "weights": "w"}, "top_k": 2}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"classes": np.array([[3], [1]])},
            r"must have shapes \(2,\), \(2, 2\) and \(2, 2\), got \(2,\), \(2, 1\) and \(2, 2\)",
        ),
        ({"positions": np.arange(3)}, r"got \(3,\)"),
        ({"keys": ["a", "\udcff"]}, r"keys must be valid text, got '\\udcff'"),
        ({"keys": ["a", "a"]}, "keys of a shard must be unique, got duplicates among 2"),
        ({"positions": np.array([5, 5])}, "positions of a shard must be unique"),
        ({"classes": np.array([[4, 0], [1, 2]])}, r"classes must be in \[0, 3\], got 0 to 4"),
        ({"classes": np.array([[-1, 0], [1, 2]])}, "got -1 to 2"),
        ({"probabilities": np.array([[0.2, 0.7], [0.5, 0.1]])}, "in descending order within a row"),
        ({"probabilities": np.array([[1.5, 0.7], [0.5, 0.1]])}, r"probabilities must be in \[0, 1\]"),
        ({"probabilities": np.array([[np.nan, 0.7], [0.5, 0.1]])}, r"probabilities must be in \[0, 1\]"),
    ],
)
def test_write_table_rejects_invalid_columns_and_leaves_no_file(tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        write_table(tmp_path / "t.parquet", ORIGIN, **make_columns(**changes))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("classes", "top", "message"),
    [
        ((), 1, "classes must be one or more unique names, got 0 names"),
        (("a", "a"), 1, "got 2 names, 1 different"),
        (("a", "b"), 3, r"top must be in \[1, 2\]"),
        (("a", "b"), 0, "got 0"),
    ],
)
def test_rejects_an_invalid_origin(classes, top, message):
    with pytest.raises(InputError, match=message):
        Origin(classes, {}, top)


def test_incomplete_labels_error_names_the_first_missing_table(tmp_path):
    write_labels(tmp_path, [[Label("a", 0, 0.5)], [Label("b", 1, 0.5)]])
    assert open_labels(tmp_path) == (ORIGIN, [tmp_path / f"train-{i:05}.parquet" for i in (0, 1)])
    write_description(tmp_path, ORIGIN, ["train-00000", "train-00002", "train-00001"])
    with pytest.raises(InputError, match=r"lacks 1 of 3 tables, such as train-00002.parquet; finish lambdanets"):
        open_labels(tmp_path)


def test_rejects_a_folder_without_description_or_tables(tmp_path):
    with pytest.raises(InputError, match=r"got one without pseudo-labels.json"):
        open_labels(tmp_path)
    write_description(tmp_path, ORIGIN)
    with pytest.raises(InputError, match="lacks all tables"):
        open_labels(tmp_path)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"classes": "ab", "teacher": {}, "top_k": 1}', "[" * 100_000])
def test_rejects_a_damaged_pseudo_labels_json(tmp_path, content):
    (tmp_path / "pseudo-labels.json").write_text(content)
    with pytest.raises(InputError, match=r"pseudo-labels.json is damaged: .*; label the images again"):
        open_labels(tmp_path)


def test_a_changed_byte_in_any_row_is_detected(tmp_path):
    path = write_labels(tmp_path, [[Label(f"k{i}", i % 4, 0.5) for i in range(300)]]) / "train-00000.parquet"
    content = path.read_bytes()
    expected = read_table(path)[0]
    for offset in range(0, len(content), 97):
        path.write_bytes(content[:offset] + bytes([content[offset] ^ 0x55]) + content[offset + 1 :])
        actual = None
        with contextlib.suppress(InputError):
            actual = read_table(path)[0]
        assert actual is None or actual.equals(expected)  # not detected only in bytes outside the rows


@pytest.mark.parametrize("length", [0, 3, 200, -1])
def test_rejects_a_truncated_table(tmp_path, length):
    path = write_labels(tmp_path, [[Label("a", 0, 0.5)]]) / "train-00000.parquet"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(InputError, match=r"train-00000.parquet is damaged \(.*\); remove train-00000.parquet and run"):
        read_table(path)


def test_rejects_a_parquet_file_without_pseudo_labels(tmp_path):
    pq.write_table(pa.table({"x": [1]}), tmp_path / "t.parquet")
    with pytest.raises(InputError, match=r"must be a table of pseudo-labels with .*, got x; remove t.parquet"):
        read_table(tmp_path / "t.parquet")


def test_rejects_a_table_of_another_teacher(tmp_path):
    path = write_labels(tmp_path, [[Label("a", 0, 0.5)]]) / "train-00000.parquet"
    other = Origin(ORIGIN.classes, {"model": "another"}, 2)
    with pytest.raises(InputError, match=r"has other classes or another teacher than pseudo-labels.json"):
        list(read_batches(path, ["class", "confidence"], other))


def test_missing_table_raises_file_not_found(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_table(tmp_path / "t.parquet")
