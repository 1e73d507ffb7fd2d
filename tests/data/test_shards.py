import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from data.coco.coco_files import png, write_tar
from data.test_batches import assert_same
from lambdanets.data.datasets import open_splits
from lambdanets.data.images import UnreadableImage
from lambdanets.data.labeled_images import image_batches
from lambdanets.data.shards import ShardedImages, open_shards
from lambdanets.errors import InputError


def to_noisy_tensor(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image.convert("L").resize((6, 6)), np.float32))[None] + torch.rand(())


def batches(images, workers=0):
    return image_batches(images, to_noisy_tensor, batch_size=4, seed=3, training=True, workers=workers)


def open_train(shards: Path) -> ShardedImages:
    images = open_splits(str(shards)).train
    assert isinstance(images, ShardedImages)
    return images


def edit_list(shards: Path, **change: object) -> None:
    path = shards / "shards.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))


def test_image_names_are_shard_and_member_also_of_a_pickled_copy(shards: Path) -> None:
    train = open_train(shards)
    assert train.name(3) == f"{shards}/train-00001.tar/{train.key(3)}.png"
    assert train.shard_sizes == [2] * 8
    image = train.load(5)[0]
    assert pickle.loads(pickle.dumps(train)).load(5)[0].tobytes() == image.tobytes()


def test_each_epoch_has_every_image_once_in_an_order_without_workers(shards: Path) -> None:
    images = open_train(shards)
    images.load(0)  # indexes a shard before the workers are forked
    loader = batches(images)
    first, second = (torch.cat([batch.indices for batch in loader]).tolist() for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(16))
    assert first != second
    assert_same(list(batches(images)), list(batches(images, workers=2)))


def test_only_the_images_of_a_damaged_shard_are_unreadable(shards: Path) -> None:
    (shards / "train-00002.tar").unlink()
    truncated, other = shards / "train-00005.tar", shards / "train-00000.tar"
    truncated.write_bytes(truncated.read_bytes()[:600])
    other.write_bytes(b"x" * other.stat().st_size)
    images = open_train(shards)
    loaded = list(batches(images, workers=2))
    assert sum(len(batch.targets) for batch in loaded) == 10
    unreadable = sorted(message for batch in loaded for message in batch.unreadable)
    assert "train-00000.tar, image 0: " in unreadable[0]
    assert unreadable[2] == f"{shards}/train-00002.tar, image 0: there is no such file"
    assert "train-00005.tar, image 1: unexpected end of data" in unreadable[5]
    with pytest.raises(UnreadableImage, match=r"train-00002\.tar, image 1: there is no such file"):
        images.load(5)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"9" * 5000, "must be a number below 2, got b.9999"),
        (b"2", "number below 2, got b.2"),
        (None, "number below 2, got b.."),
    ],
)
def test_image_without_a_valid_class_is_unreadable(tmp_path: Path, content: bytes | None, reason: str) -> None:
    write_tar(tmp_path / "train-0.tar", {"a.png": png()} | ({"a.cls": content} if content else {}))
    size = (tmp_path / "train-0.tar").stat().st_size
    shard = {"name": "train-0.tar", "images": 1, "bytes": size, "sha256": "0" * 64}
    (tmp_path / "shards.json").write_text(json.dumps({"classes": ["a", "b"], "splits": {"train": [shard]}}))
    with pytest.raises(UnreadableImage, match=reason):
        open_shards(str(tmp_path))["train"].load(0)


def test_whole_shards_are_held_out_without_a_validation_split(shards: Path) -> None:
    train = json.loads((shards / "shards.json").read_text())["splits"]["train"]
    edit_list(shards, splits={"train": train})
    held_out = []
    for seed in (1, 2):
        splits = open_splits(str(shards), validation_share=0.3, seed=seed)
        parts = [[images.key(index) for index in range(len(images))] for images in (splits.train, splits.validation)]
        assert ([*map(len, parts)], len({*parts[0], *parts[1]})) == ([10, 6], 16)
        assert f"3 of 8 shards held out with seed {seed}" in splits.source
        held_out.append(parts[1])
    assert held_out[0] != held_out[1]
    edit_list(shards, splits={"train": train[:1]})
    with pytest.raises(InputError, match="at least 2 shards to hold some out, got 1"):
        open_splits(str(shards))


def test_hold_out_takes_whole_training_shards_and_subsets_are_refused(shards: Path) -> None:
    splits = open_splits(str(shards))
    new_splits = open_splits(str(shards), hold_out=0.25)
    assert (len(new_splits.train), len(new_splits.validation)) == (12, 4)
    assert new_splits.test.name(0) == splits.validation.name(0)
    with pytest.raises(InputError, match="training_images must be None for shards"):
        open_splits(str(shards), training_images=8)


def test_fingerprint_depends_only_on_shards_json(shards: Path) -> None:
    text = (shards / "shards.json").read_text()
    fingerprints = [open_splits(str(shards)).fingerprint]
    for tar in shards.glob("*.tar"):
        tar.unlink()
    assert open_splits(str(shards)).fingerprint == fingerprints[0]
    sha256 = json.loads(text)["splits"]["train"][0]["sha256"]
    for changed in (text.replace('"dark"', '"dim"'), text.replace(sha256, sha256[::-1])):
        (shards / "shards.json").write_text(changed)
        fingerprints.append(open_splits(str(shards)).fingerprint)
    assert len(set(fingerprints)) == 3


SHARD = {"name": "../a.tar", "images": 1, "bytes": 1, "sha256": "00" * 32}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classes": 3}, "is not a valid shards.json: classes must be .*, got 3"),
        ({"splits": {}}, "splits must have shards of 'train', got none"),
        ({"splits": {"train": [SHARD]}}, r"splits\.train\[0\]\.name must match pattern"),
        ({"splits": {"train": [{"name": "a.tar"}]}}, r"splits\.train\[0\]\.images must be given, got none"),
    ],
)
def test_rejects_an_invalid_shards_json(shards: Path, change: dict[str, object], message: str) -> None:
    edit_list(shards, **change)
    with pytest.raises(InputError, match=message):
        open_splits(str(shards))
