"""The images of a selection are joined with their labels."""

import json
from collections import Counter

import numpy as np
import pytest

from lambdanets.data.shards import open_shards
from lambdanets.errors import InputError
from lambdanets_lab.pseudo.student import PseudoLabeledImages
from lambdanets_lab.pseudo.tables import read_table
from training.teachers import CLASSES, write_selection


@pytest.fixture
def selection(shards, tmp_path):
    return write_selection(shards, tmp_path / "student")


def open_images(shards, selection, *, classes=CLASSES, soft=True):
    return PseudoLabeledImages(str(shards), selection, classes, soft=soft)


def read_rows(selection):
    """Return the rows of all tables, in order."""
    tables = (read_table(path) for path in sorted(selection.glob("*.parquet")))
    return [row for table in tables for row in table.to_pylist()]


def test_images_are_joined_with_their_rows(shards, selection):
    images = open_images(shards, selection, soft=False)
    shard_images = open_shards(str(shards))["train"]
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
    names = Counter(images.name(number).partition(".tar/")[2].rpartition(".")[0] for number in range(len(images)))
    assert names == {row["key"]: row["copies"] for row in rows}
    labels = Counter(images.load(number)[1] for number in range(len(images)))
    assert labels == dict.fromkeys({row["class"] for row in rows}, 40)


def test_soft_label_divides_remaining_probability_equally(shards, selection):
    classes = ("none", *reversed(CLASSES), "neither")  # in another order, with two more classes
    images = open_images(shards, selection, classes=classes)
    hard = open_images(shards, selection, classes=classes, soft=False)
    for number, row in enumerate(read_rows(selection)):
        label = images.load(number)[1]
        assert label.dtype == np.float32
        assert label.sum() == pytest.approx(1, abs=1e-6)
        expected = np.full(6, (1 - sum(row["probabilities"])) / 4)
        for class_number, probability in zip(row["classes"], row["probabilities"], strict=True):
            expected[classes.index(CLASSES[class_number])] = probability
        np.testing.assert_allclose(label, expected, atol=1e-6)
        assert classes[hard.load(number)[1]] == CLASSES[row["class"]]


def test_rejects_labels_of_other_images(shards, selection):
    shard_list = json.loads((shards / "shards.json").read_text())
    shard_list["splits"]["train"].reverse()
    (shards / "shards.json").write_text(json.dumps(shard_list))
    with pytest.raises(InputError, match="selection has labels of other shards"):
        open_images(shards, selection)
