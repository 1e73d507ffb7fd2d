"""Invalid input of a selection of pseudo-labels is rejected with an error."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.label_tables import ORIGIN, Label, random_labels, write_labels
from lambdanets.data.pseudo_labels.selection import select
from lambdanets.data.pseudo_labels.tables import Origin, read_table, write_description
from lambdanets.errors import InputError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"confidence": -0.1}, r"confidence must be in \[0, 1\), got -0.1"),
        ({"confidence": 1.0}, r"confidence must be in \[0, 1\), got 1"),
        ({"confidence": float("nan")}, r"\), got nan"),
        ({"per_class": 0}, r"per_class must be in \[1, 2147483647\], got 0"),
        ({"per_class": 1 << 31}, "got 2147483648"),
        ({"seed": -1}, r"seed must be in \[0, 18446744073709551615\], got -1"),
        ({"confidence": 0.95}, r"confidence must be at most 0.9, the maximum of 2 rows in .*, got 0.95"),
    ],
)
def test_selection_rejects_options_out_of_range(tmp_path, options, message):
    write_labels(tmp_path / "in", [[Label("a", 0, 0.9), Label("b", 1, 0.2)]])
    with pytest.raises(InputError, match=message):
        select(tmp_path / "in", tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"confidence": 0.2}, r"has a selection with confidence 0.3, not 0.2; choose another folder"),
        ({"per_class": 5}, r"has a selection with per_class None, not 5"),
        ({"seed": 9}, r"has a selection with seed 0, not 9"),
    ],
)
@pytest.mark.parametrize("finished", [True, False])
def test_selection_rejects_a_folder_of_other_options(tmp_path, options, message, finished):
    select(write_labels(tmp_path / "in", [random_labels(20)]), tmp_path / "out")
    if not finished:
        (tmp_path / "out/selection.json").unlink()
    with pytest.raises(InputError, match=message):
        select(tmp_path / "in", tmp_path / "out", **options)


def test_selection_rejects_a_folder_of_other_labels(tmp_path):
    select(write_labels(tmp_path / "in", [random_labels(20)]), tmp_path / "out")
    select(write_labels(tmp_path / "in", [random_labels(20), []]), tmp_path / "out2")
    with pytest.raises(InputError, match="out has a selection with other labels; choose another folder"):
        select(tmp_path / "in", tmp_path / "out")


def test_selection_rejects_a_folder_with_unknown_content(tmp_path):
    labels = write_labels(tmp_path / "in", [random_labels(20)])
    (tmp_path / "other").mkdir()
    (tmp_path / "other/notes.txt").write_text("")
    for out, message in (
        (labels, "in is not empty, "),
        (tmp_path / "other", "is not empty, it has notes.txt; choose another folder"),
        (tmp_path / "other/notes.txt", "must be a folder, got a file"),
    ):
        with pytest.raises(InputError, match=message):
            select(labels, out)


def test_selection_rejects_a_damaged_selection_json(tmp_path):
    select(write_labels(tmp_path / "in", [random_labels(20)]), tmp_path / "out")
    for content in ("{", "[]", "{}"):
        (tmp_path / "out/selection.json").write_text(content)
        with pytest.raises(InputError, match=r"selection.json is damaged: .*; remove it and select again"):
            select(tmp_path / "in", tmp_path / "out")


def test_rejects_mixed_teachers_and_damaged_or_invalid_tables(tmp_path):
    labels = random_labels(20)
    write_labels(tmp_path / "in", [labels, labels], Origin(ORIGIN.classes, {"model": "another"}, 2))
    write_description(tmp_path / "in", ORIGIN)
    with pytest.raises(InputError, match=r"train-0000\d.parquet has other classes or another teacher"):
        select(tmp_path / "in", tmp_path / "out")
    path = write_labels(tmp_path / "in", [labels]) / "train-00001.parquet"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InputError, match=r"train-00001.parquet is damaged"):
        select(tmp_path / "in", tmp_path / "out")
    table, origin = read_table(tmp_path / "in/train-00000.parquet")
    for column, column_type, value, message in (
        (2, pa.int32(), 4, r"is damaged: class must be in \[0, 3\], got 4 to 4"),
        (3, pa.float32(), 1.5, r"is damaged: confidence must be in \[0, 1\]"),
        (3, pa.float32(), float("nan"), r"is damaged: confidence must be in \[0, 1\]"),
    ):
        damaged = table.set_column(column, table.schema.field(column), pa.array([value] * len(table), column_type))
        with pq.ParquetWriter(path, damaged.schema, store_schema=False) as file:
            file.write_table(damaged)
            file.add_key_value_metadata({b"lambdanets": origin.to_json()})
        with pytest.raises(InputError, match=message):
            select(tmp_path / "in", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_labels_changed_before_resuming_are_detected(tmp_path):
    write_labels(tmp_path / "in", [[Label("a", 0, 0.9), Label("b", 1, 0.9)]])
    size = (tmp_path / "in/train-00000.parquet").stat().st_size
    select(tmp_path / "in", tmp_path / "out")
    (tmp_path / "out/selection.json").unlink()
    write_labels(tmp_path / "in", [[Label("a", 0, 0.9), Label("b", 1, 0.1)]])
    assert (tmp_path / "in/train-00000.parquet").stat().st_size == size
    with pytest.raises(InputError, match=r"in changed while it was read; remove .*out and select again"):
        select(tmp_path / "in", tmp_path / "out")
    assert not (tmp_path / "out/selection.json").exists()
