import io
import json
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from data.same_batches import assert_same
from lambdanets.data.datasets import Splits, hold_out, open_splits, subset
from lambdanets.data.images import UnreadableImage
from lambdanets.data.loader import ImageBatches
from lambdanets.data.shards import ShardedImages, is_sharded, open_shards
from lambdanets.errors import InputError
from lambdanets_lab.shards import write_shards
from noise_images import write_images


def to_noisy_tensor(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image.convert("L").resize((6, 6)), np.float32))[None] + torch.rand(())


def batches(images: ShardedImages, *, workers: int = 0, training: bool = True) -> ImageBatches:
    return ImageBatches(images, to_noisy_tensor, channels=1, batch_size=4, seed=3, training=training, workers=workers)


def test_sharded_set_has_the_same_images_classes_and_splits(two_classes: Path, shards: Path) -> None:
    original, sharded = open_splits(str(two_classes)), open_splits(str(shards))
    assert sharded.classes == ("dark", "light")
    for expected, actual in ((original.train, sharded.train), (original.validation, sharded.validation)):
        assert isinstance(actual, ShardedImages)
        assert len(actual) == len(expected)
        loaded = {actual.key(index): actual.load(index) for index in range(len(actual))}
        for index in range(len(expected)):
            image, label = loaded[str(Path(expected.name(index)).relative_to(two_classes).with_suffix(""))]
            assert label == expected.labels[index]
            assert image.tobytes() == expected.load(index)[0].tobytes()
        assert actual.labels.tolist() == [actual.load(index)[1] for index in range(len(actual))]
        assert actual.labels.dtype == np.int64


def test_image_names_are_shard_and_member(shards: Path) -> None:
    train = open_splits(str(shards)).train
    assert isinstance(train, ShardedImages)
    assert train.name(3) == f"{shards}/train-00001.tar/{train.key(3)}.png"
    assert train.shard_sizes == [2] * 8


def test_batches_of_shards_do_not_depend_on_workers(shards: Path) -> None:
    images = open_splits(str(shards)).train
    assert isinstance(images, ShardedImages)
    images.load(0)  # opens a shard before the workers are forked
    assert_same(list(batches(images)), list(batches(images, workers=2)))


def test_sharded_images_can_be_pickled(shards: Path) -> None:
    images = open_splits(str(shards)).train
    images.load(0)
    copy = pickle.loads(pickle.dumps(images))
    assert copy.load(5)[0].tobytes() == images.load(5)[0].tobytes()


def test_each_epoch_has_every_image_once_in_another_order(shards: Path) -> None:
    images = open_splits(str(shards)).train
    assert isinstance(images, ShardedImages)
    loader = batches(images)
    first, second = (torch.cat([batch.indices for batch in loader]).tolist() for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(16))
    assert first != second


@pytest.mark.parametrize("workers", [0, 2])
def test_loader_of_shards_resumes_in_mid_epoch(shards: Path, workers: int) -> None:
    images = open_splits(str(shards)).train
    assert isinstance(images, ShardedImages)
    uninterrupted = list(batches(images))
    interrupted = batches(images)
    iterator = iter(interrupted)
    first = [next(iterator), next(iterator)]
    resumed = batches(images, workers=workers)
    resumed.load_state_dict(interrupted.state_dict())
    assert_same([*first, *resumed], uninterrupted)


def test_at_most_16_shard_files_stay_open(two_classes: Path, tmp_path: Path) -> None:
    write_images(two_classes / "middle", 20, 120)
    write_shards(open_splits(str(two_classes)), tmp_path / "shards", images_per_shard=1)
    images = open_splits(str(tmp_path / "shards")).train
    assert len(images) == 32
    assert [images.load(index)[1] for index in range(32)] == list(images.labels)
    links = [path.resolve() for path in Path("/proc/self/fd").iterdir()]
    assert len([link for link in links if link.parent == tmp_path / "shards"]) == 16


def test_missing_or_truncated_shard_makes_only_its_images_unreadable(shards: Path) -> None:
    (shards / "train-00002.tar").unlink()
    truncated = shards / "train-00005.tar"
    truncated.write_bytes(truncated.read_bytes()[:600])
    images = open_splits(str(shards)).train
    assert isinstance(images, ShardedImages)
    loaded = list(batches(images, workers=2))
    assert sum(len(batch.labels) for batch in loaded) == 12
    unreadable = sorted(message for batch in loaded for message in batch.unreadable)
    assert unreadable[0] == f"{shards}/train-00002.tar, image 0: there is no such file"
    assert "train-00005.tar, image 1: it has 600 bytes, not" in unreadable[3]
    with pytest.raises(UnreadableImage, match=r"train-00002\.tar, image 1: there is no such file"):
        images.load(5)


def test_repaired_shard_is_read_after_a_delay(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = shards / "train-00000.tar"
    content = path.read_bytes()
    path.unlink()
    images = open_splits(str(shards)).train
    with pytest.raises(UnreadableImage):
        images.load(0)
    path.write_bytes(content)
    with pytest.raises(UnreadableImage):
        images.load(0)
    monkeypatch.setattr("lambdanets.data.shards._RETRY_SECONDS", 0.0)
    images.load(0)


def test_images_of_a_shard_that_is_not_a_tar_are_unreadable(shards: Path) -> None:
    path = shards / "train-00000.tar"
    path.write_bytes(b"x" * path.stat().st_size)
    images = open_splits(str(shards)).train
    with pytest.raises(UnreadableImage, match=r"train-00000\.tar, image 0"):
        images.load(0)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"9" * 5000, "class must be a number, got b'9999"), (b"2", "class must be below 2, got 2"), (None, "no class")],
)
def test_image_without_a_valid_class_is_unreadable(tmp_path: Path, content: bytes | None, reason: str) -> None:
    png = io.BytesIO()
    Image.new("L", (4, 4)).save(png, "PNG")
    members = {"a.png": png.getvalue()} | ({"a.cls": content} if content else {})
    with tarfile.open(tmp_path / "train-0.tar", "w") as tar:
        for name, member in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(member)
            tar.addfile(info, io.BytesIO(member))
    size = (tmp_path / "train-0.tar").stat().st_size
    shard = {"name": "train-0.tar", "images": 1, "bytes": size, "sha256": "0" * 64}
    (tmp_path / "shards.json").write_text(json.dumps({"classes": ["a", "b"], "splits": {"train": [shard]}}))
    splits, _ = open_shards(str(tmp_path))
    with pytest.raises(UnreadableImage, match=reason):
        splits["train"].load(0)


def test_whole_shards_are_held_out_without_a_validation_split(shards: Path) -> None:
    content = json.loads((shards / "shards.json").read_text())
    del content["splits"]["validation"]
    (shards / "shards.json").write_text(json.dumps(content))
    splits = open_splits(str(shards), validation_share=0.3, seed=1)
    keys = []
    for images, count in ((splits.train, 10), (splits.validation, 6)):
        assert isinstance(images, ShardedImages)
        assert len(images) == count
        keys += [images.key(index) for index in range(count)]
    assert len(set(keys)) == 16
    assert "3 of 8 shards held out with seed 1" in splits.source
    assert validation_names(splits) != validation_names(open_splits(str(shards), validation_share=0.3, seed=2))


def validation_names(splits: Splits) -> list[str]:
    return [splits.validation.name(index) for index in range(len(splits.validation))]


def test_hold_out_takes_whole_training_shards(shards: Path) -> None:
    splits = open_splits(str(shards))
    new_splits = hold_out(splits, 0.25, 0)
    assert isinstance(new_splits.train, ShardedImages)
    assert isinstance(new_splits.validation, ShardedImages)
    assert (new_splits.train.shard_sizes, new_splits.validation.shard_sizes) == ([2] * 6, [2] * 2)
    assert new_splits.test is splits.validation
    assert hold_out(splits, 0, 0) is splits


def test_rejects_holding_out_from_a_single_shard(shards: Path) -> None:
    content = json.loads((shards / "shards.json").read_text())
    content["splits"] = {"train": content["splits"]["train"][:1]}
    (shards / "shards.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"at least 2 shards to hold some out, got 1"):
        open_splits(str(shards))


def test_rejects_a_subset_of_images_in_shards(shards: Path) -> None:
    splits = open_splits(str(shards))
    assert subset(splits, None, 0) is splits
    with pytest.raises(InputError, match="training_images must be None for shards"):
        subset(splits, 8, 0)


def test_fingerprint_depends_only_on_shards_json(shards: Path) -> None:
    original = open_splits(str(shards)).fingerprint
    path = shards / "shards.json"
    text = path.read_text()
    for tar in shards.glob("*.tar"):
        tar.unlink()
    assert open_splits(str(shards)).fingerprint == original
    path.write_text(text.replace('"dark"', '"dim"'))
    assert open_splits(str(shards)).fingerprint != original
    sha256 = json.loads(text)["splits"]["train"][0]["sha256"]
    path.write_text(text.replace(sha256, sha256[::-1]))
    assert open_splits(str(shards)).fingerprint != original


def with_fields(**fields: object) -> dict[str, object]:
    """One shard with changed fields, in the format of shards.json."""
    return {"splits": {"train": [{"name": "a.tar", "images": 1, "bytes": 1, "sha256": "00" * 32} | fields]}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classes": []}, "got images without classes"),
        ({"classes": ["a"]}, "got only 'a'"),
        ({"classes": 3}, "is not a valid shards.json: classes must be .*, got 3"),
        ({"splits": {}}, "splits must be 'train' and optionally 'validation', got no 'train'"),
        (with_fields(name="../a.tar"), "name of a shard must be a file name without a folder, got '../a.tar'"),
        (with_fields(name=""), "name of a shard must be a file name without a folder, got ''"),
        (with_fields(name=".."), "name of a shard must be a file name without a folder, got '..'"),
        (with_fields(images=-1), r"splits\.train\[0\]\.images must be greater than or equal to 0, got -1"),
        (with_fields(images=10**30), r"splits\.train\[0\]\.images must be less than "),
        (with_fields(sha256="00"), "sha256 must be 64 hexadecimal digits, got '00'"),
        ({"splits": {"train": [{"name": "a.tar"}]}}, r"splits\.train\[0\]\.images must be given, got none"),
        ({"splits": {"other": []}}, "splits must be 'train' and optionally 'validation', got 'other'"),
    ],
)
def test_rejects_an_invalid_shards_json(shards: Path, change: dict[str, object], message: str) -> None:
    content = json.loads((shards / "shards.json").read_text())
    (shards / "shards.json").write_text(json.dumps(content | change))
    with pytest.raises(InputError, match=message):
        open_splits(str(shards))


def test_rejects_a_shards_json_nested_too_deeply(shards: Path) -> None:
    (shards / "shards.json").write_text("[" * 100_000)
    with pytest.raises(InputError, match=r"is not a valid shards\.json: "):
        open_splits(str(shards))


def test_is_sharded_for_urls_and_folders_with_shards_json(shards: Path, two_classes: Path) -> None:
    assert is_sharded(str(shards))
    assert is_sharded("http://127.0.0.1/set")
    assert is_sharded("s3://bucket/set")
    assert not any(is_sharded(data) for data in (str(two_classes), "digits", "hfds/some/set", "", "a:b", "://x"))
