import numpy as np
import pytest
import torch

from lambdanets.data.shards import _index_shard, open_shards
from lambdanets.errors import InputError
from lambdanets.inference.loading import load
from lambdanets.work import locked
from lambdanets_lab.pseudo import labeling
from lambdanets_lab.pseudo.labeling import label_shards
from lambdanets_lab.pseudo.tables import open_labels, read_table, select, write_table
from lambdanets_lab.shards import write_shards
from training.teachers import CLASSES, write_teacher

SHARDS = [f"train-{number:05}" for number in range(8)]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    return write_teacher(tmp_path_factory.mktemp("teacher") / "run")


def read_tables(folder):
    return {path.stem: path.read_bytes() for path in sorted(folder.glob("*.parquet"))}


def test_labels_are_the_teachers_most_probable_classes(teacher, shards, tmp_path):
    result = label_shards(teacher, str(shards), tmp_path / "out", top=3, batch_size=2)
    assert (result.num_shards, result.num_images, result.unreadable, result.num_in_progress) == (8, 16, (), 0)
    assert open_labels(tmp_path / "out").classes == CLASSES
    classifier = load(teacher)
    transform = classifier.card.preprocessing.transform()
    images = open_shards(str(shards))["train"]
    rows = [row for name in SHARDS for row in read_table(tmp_path / f"out/{name}.parquet").to_pylist()]
    assert len(rows) == 16
    for index, row in enumerate(rows):
        image = transform(images.load(index)[0])
        with torch.inference_mode():
            logits = classifier.model(image[None].to(next(classifier.model.parameters()).device))[0]
        expected = logits.double().softmax(0).sort(descending=True)
        assert (row["key"], row["position"]) == (images.key(index), index % 2)
        assert row["classes"] == expected.indices[:3].tolist()
        np.testing.assert_allclose(row["probabilities"], expected.values[:3].cpu(), atol=1e-5)
        assert (row["class"], row["confidence"]) == (row["classes"][0], row["probabilities"][0])


def test_interrupted_labeling_resumes_with_the_next_shard(teacher, shards, tmp_path, monkeypatch):
    def write_and_stop(*table):
        write_table(*table)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(labeling, "write_table", write_and_stop)
        with pytest.raises(KeyboardInterrupt):
            label_shards(teacher, str(shards), tmp_path / "out")
    assert [*read_tables(tmp_path / "out")] == SHARDS[:1]
    with pytest.raises(InputError, match=r"out lacks 7 of 8 tables, such as train-00001.parquet; finish lambdanets"):
        select(tmp_path / "out", tmp_path / "selection")
    result = label_shards(teacher, str(shards), tmp_path / "out")
    assert (result.num_shards, result.num_images) == (7, 14)
    monkeypatch.setattr(labeling, "write_table", write_and_stop)
    assert label_shards(teacher, str(shards), tmp_path / "out").num_shards == 0


def test_shard_locked_by_another_process_is_skipped(teacher, shards, tmp_path):
    (tmp_path / "out").mkdir()
    with locked(tmp_path / "out/.train-00003.lock", tmp_path):
        result = label_shards(teacher, str(shards), tmp_path / "out")
    assert (result.num_shards, result.num_in_progress) == (7, 1)
    assert not (tmp_path / "out/train-00003.parquet").exists()
    assert label_shards(teacher, str(shards), tmp_path / "out").num_shards == 1


@pytest.mark.parametrize("difference", ["weights must be .*", "top must be 2, got 3", "images must be .*"])
def test_rejects_a_folder_of_other_labels_and_leaves_it_unchanged(teacher, shards, two_classes, difference, tmp_path):
    label_shards(teacher, str(shards), tmp_path / "out", top=2)
    tables_before = read_tables(tmp_path / "out")
    (tmp_path / "out/train-00000.parquet").unlink()
    options = {"top": 3 if difference.startswith("top") else 2}
    if difference.startswith("weights"):
        teacher = write_teacher(tmp_path / "other", seed=1)
    elif difference.startswith("images"):
        shards = tmp_path / "more"
        write_shards(sorted(two_classes.glob("*/*.png")), shards, images_per_shard=5)
    with pytest.raises(InputError, match=f"{difference}, since .*out was started so; choose another folder"):
        label_shards(teacher, str(shards), tmp_path / "out", **options)
    assert read_tables(tmp_path / "out") == {name: tables_before[name] for name in SHARDS[1:]}


def test_labeling_skips_and_lists_unreadable_images(teacher, shards, tmp_path):
    damaged_shard = shards / "train-00002.tar"
    damaged_shard.write_bytes(damaged_shard.read_bytes().replace(b"IHDR", b"XXXX", 1))
    result = label_shards(teacher, str(shards), tmp_path / "out")
    assert (result.num_shards, result.num_images, len(result.unreadable)) == (8, 15, 1)
    assert result.unreadable[0].startswith(f"{damaged_shard}/")
    table = read_table(tmp_path / "out/train-00002.parquet")
    assert table["position"].to_pylist() == [1]
    assert table["key"].to_pylist() == [open_shards(str(shards))["train"].key(5)]


def test_a_shard_that_was_missing_for_a_moment_is_labeled_by_the_next_call(teacher, shards, tmp_path):
    shard = shards / "train-00002.tar"
    content = shard.read_bytes()
    shard.unlink()
    result = label_shards(teacher, str(shards), tmp_path / "out")
    assert (result.num_shards, result.num_images, len(result.unreadable)) == (7, 14, 2)
    _index_shard.cache_clear()
    shard.write_bytes(content)
    result = label_shards(teacher, str(shards), tmp_path / "out")
    assert (result.num_shards, result.num_images) == (1, 2)
