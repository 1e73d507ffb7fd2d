import json
import pickle
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lambdanets.data.images import UnreadableImage
from lambdanets.data.pseudo_labels.student_images import open_student_images
from lambdanets.data.pseudo_labels.tables import read_table
from lambdanets.data.shards.images import open_shards
from lambdanets.errors import InputError, is_user_fixable
from training.teachers import CLASSES, replace_bytes, write_selection


@pytest.fixture
def selection(shards, tmp_path):
    return write_selection(shards, tmp_path / "student")


def open_images(shards, selection, *, classes=CLASSES, soft=True):
    return open_student_images(str(shards), selection, classes, soft=soft)


def edit_rows(path, change):
    """Call change(rows) with the rows of a table as dictionaries, and write them back."""
    table = pq.read_table(path)
    rows = table.to_pylist()
    change(rows)
    with pq.ParquetWriter(path, table.schema, store_schema=False) as file:
        file.write_table(pa.Table.from_pylist(rows, schema=table.schema))
        file.add_key_value_metadata(table.schema.metadata)


def read_rows(selection):
    """Return the rows of all tables, in order."""
    return [row for path in sorted(selection.glob("*.parquet")) for row in read_table(path)[0].to_pylist()]


def load_all(images):
    """Return the pixels and the label of each image by name."""
    return {
        images.name(number): (np.array(image).tobytes(), np.asarray(label).tolist())
        for number in range(len(images))
        for image, label in [images.load(number)]
    }


def test_images_are_joined_to_their_rows_by_key(shards, selection):
    images = open_images(shards, selection, soft=False)
    shard_images = open_shards(str(shards))[0]["train"]
    assert len(images) == len(shard_images) == 16
    assert images.shard_sizes == shard_images.shard_sizes
    for number, row in enumerate(read_rows(selection)):
        assert images.name(number) == shard_images.name(number)
        assert f"/{row['key']}." in images.name(number)
        assert np.array_equal(images.load(number)[0], shard_images.load(number)[0])
        assert images.load(number)[1] == row["class"]


def test_images_are_repeated_as_often_as_they_have_copies(shards, tmp_path):
    selection = write_selection(shards, tmp_path / "student", per_class=40)
    images = open_images(shards, selection, soft=False)
    rows = read_rows(selection)
    assert len(images) == sum(images.shard_sizes) == sum(row["copies"] for row in rows)
    assert len(images) % 40 == 0
    names = Counter(images.name(number).partition(".tar/")[2].rpartition(".")[0] for number in range(len(images)))
    assert names == {row["key"]: row["copies"] for row in rows}
    assert len({*names.values()}) > 1
    assert Counter(images.labels.tolist()) == dict.fromkeys({row["class"] for row in rows}, 40)


def test_shards_without_selected_rows_are_skipped(shards, tmp_path):
    selection = write_selection(shards, tmp_path / "student", per_class=2)
    images = open_images(shards, selection)
    assert 0 in images.shard_sizes
    assert len(images) == sum(images.shard_sizes) == len(images.labels)
    assert len(load_all(images)) == len(images)


def test_soft_label_divides_remaining_probability_equally(shards, selection):
    classes = ("none", *reversed(CLASSES), "neither")  # in another order, with two more classes
    images = open_images(shards, selection, classes=classes)
    for number, row in enumerate(read_rows(selection)):
        label = images.load(number)[1]
        assert label.dtype == np.float32
        assert label.sum() == pytest.approx(1, abs=1e-6)
        expected = np.full(6, (1 - sum(row["probabilities"])) / 4)
        for class_number, probability in zip(row["classes"], row["probabilities"], strict=True):
            expected[classes.index(CLASSES[class_number])] = probability
        np.testing.assert_allclose(label, expected, atol=1e-6)


def test_soft_label_with_all_classes_stored_has_the_teachers_values(shards, tmp_path):
    selection = write_selection(shards, tmp_path / "student", top=4)
    label = open_images(shards, selection).load(0)[1]
    row = read_rows(selection)[0]
    np.testing.assert_allclose(label[row["classes"]], row["probabilities"], atol=1e-6)
    assert label.sum() == pytest.approx(1, abs=1e-6)


def test_hard_label_is_the_most_probable_class_by_name(shards, selection):
    classes = tuple(reversed(CLASSES))
    images = open_images(shards, selection, classes=classes, soft=False)
    expected = [CLASSES[row["class"]] for row in read_rows(selection)]
    assert [classes[images.load(number)[1]] for number in range(16)] == expected
    assert [classes[label] for label in images.labels] == expected


def test_rows_are_found_by_key_not_by_position(shards, selection):
    expected = load_all(open_images(shards, selection))

    def reverse(rows):
        rows.reverse()
        for row in rows:
            row["position"] = 7 - row["position"]

    edit_rows(selection / "train-00003.parquet", reverse)
    assert load_all(open_images(shards, selection)) == expected


def test_image_whose_key_is_not_in_the_shard_is_unreadable(shards, selection):
    edit_rows(selection / "train-00001.parquet", lambda rows: rows[1].update(key="dark/gone"))
    images = open_images(shards, selection)
    with pytest.raises(UnreadableImage, match=r"train-00001.parquet: no image has the key 'dark/gone'"):
        images.load(3)
    assert images.name(3) == f"{selection}/train-00001.parquet"
    images.load(2)


def test_damaged_pseudo_labeled_image_is_unreadable(shards, selection):
    images = open_images(shards, selection)
    replace_bytes(shards, 2, b"IHDR", b"XXXX")
    with pytest.raises(UnreadableImage):
        images.load(4)


def test_images_of_a_missing_shard_are_unreadable(shards, selection):
    (shards / "train-00002.tar").unlink()
    images = open_images(shards, selection)
    for number in (4, 5):
        with pytest.raises(UnreadableImage):
            images.load(number)
        assert "train-00002.tar" in images.name(number)


def test_rejects_a_teacher_class_that_the_student_lacks(shards, selection):
    with pytest.raises(InputError, match=r"must be classes of the labeled images, .*, got 'red'"):
        open_images(shards, selection, classes=("dark", "light", "striped"))


def test_rejects_labels_of_other_images(shards, selection):
    shard_list = json.loads((shards / "shards.json").read_text())
    shard_list["splits"]["train"].reverse()
    (shards / "shards.json").write_text(json.dumps(shard_list))
    with pytest.raises(InputError, match="selection has labels of other shards"):
        open_images(shards, selection)


def test_rejects_labels_of_an_unknown_shard(shards, selection):
    content = json.loads((selection / "selection.json").read_text())
    del content["teacher"]["images"]
    (selection / "selection.json").write_text(json.dumps(content))
    assert len(open_images(shards, selection)) == 16
    content["shards"][3]["name"] = "part-3"
    (selection / "selection.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"selection has labels of the shard 'part-3', which does not exist"):
        open_images(shards, selection)


@pytest.mark.parametrize("name", ["classes", "shards", "teacher", "images"])
def test_rejects_a_selection_json_with_missing_fields(shards, selection, name):
    content = json.loads((selection / "selection.json").read_text())
    del content[name]
    (selection / "selection.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"selection.json is damaged: .*; remove it and select again"):
        open_images(shards, selection)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("classes", ["a", "b"]),
        ("classes", []),
        ("shards", ["train-00000"]),
        ("shards", []),
        ("shards", [{"name": "train-00000"}]),
        ("shards", [{"name": "train-00000", "images": "x"}]),
        ("shards", [{"name": "train-00000", "images": -1}]),
    ],
)
def test_rejects_a_selection_json_with_invalid_entries(shards, selection, name, value):
    content = json.loads((selection / "selection.json").read_text())
    (selection / "selection.json").write_text(json.dumps(content | {name: value}))
    with pytest.raises(InputError, match=r"selection.json is damaged: .*; remove it and select again"):
        open_images(shards, selection)


def test_missing_table_error_names_the_file(shards, selection):
    (selection / "train-00000.parquet").unlink()
    with pytest.raises(OSError, match="No such file") as raised:
        _ = open_images(shards, selection).labels
    assert is_user_fixable(raised.value)
    assert raised.value.filename == str(selection / "train-00000.parquet")


def test_rejects_an_unfinished_selection(shards, selection):
    (selection / "selection.json").unlink()
    with pytest.raises(InputError, match=r"finished selection of pseudo-labels, got a folder without"):
        open_images(shards, selection)


def test_rejects_a_table_that_changed_after_selection(shards, selection):
    edit_rows(selection / "train-00000.parquet", lambda rows: rows[0].update(copies=2))
    with pytest.raises(InputError, match=r"train-00000.parquet has changed"):
        open_images(shards, selection).load(0)


def test_student_images_can_be_pickled(shards, selection):
    images = open_images(shards, selection)
    images.load(5)
    assert load_all(pickle.loads(pickle.dumps(images))) == load_all(images)


def test_different_selections_have_different_fingerprints(shards, selection, tmp_path):
    other = write_selection(shards, tmp_path / "other", confidence=0.1)
    assert open_images(shards, selection).fingerprint == open_images(shards, selection, soft=False).fingerprint
    assert open_images(shards, selection).fingerprint != open_images(shards, other).fingerprint
