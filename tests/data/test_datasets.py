import io
import os
import struct
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from data.coco.coco_files import png, write_folder
from lambdanets.data.datasets import Splits, open_evaluation_images, open_splits
from lambdanets.data.images import UnreadableImage
from lambdanets.data.labeled_images import LabeledImages
from lambdanets.errors import InputError


def write_classes(folder: Path, **counts: int) -> Path:
    files = {f"{name}/{i}.png": png(value=i) for name, count in counts.items() for i in range(count)}
    return write_folder(folder, files)


def names(images: LabeledImages) -> list[str]:
    return [images.name(index) for index in range(len(images))]


def test_digits_are_gray_with_full_range_and_held_out_by_class() -> None:
    splits = open_splits("digits")
    assert (len(splits.train), len(splits.validation)) == (1437, 360)
    assert splits.train.classes == tuple("0123456789")
    assert set(Counter(splits.validation.labels).values()) <= set(range(34, 38))
    image, label = splits.train.load(0)
    assert (image.mode, image.size, label) == ("L", (8, 8), splits.train.labels[0])
    assert max(splits.train.load(index)[0].getextrema()[1] for index in range(20)) == 255
    assert splits.train.name(0).startswith("digits/")


def test_hold_out_is_disjoint_and_depends_on_the_seed() -> None:
    splits = open_splits("digits", validation_share=0.5)
    assert len({*names(splits.train), *names(splits.validation)}) == 1797
    held_out = [names(open_splits("digits", seed=seed).validation) for seed in (1, 1, 2)]
    assert held_out[0] == held_out[1] != held_out[2]


def test_validation_has_the_class_indices_of_training(tmp_path: Path) -> None:
    write_classes(tmp_path / "train", a=2, b=2)
    write_classes(tmp_path / "val", b=1)
    splits = open_splits(str(tmp_path))
    assert splits.validation.labels == [1]
    assert splits.validation.load(0)[1] == 1
    write_classes(tmp_path / "val", zebra=1)
    with pytest.raises(InputError, match=r"among the 2 of training \('a', 'b'\), got 'zebra'"):
        open_splits(str(tmp_path))


def test_data_that_are_missing_or_without_classes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("empty/cat", "flat"):
        Path(folder).mkdir(parents=True)
    for file in ("flat/a.png", "all.tar.gz"):
        Path(file).write_bytes(png())
    os.mkfifo("pipe.tar")  # which is not opened
    write_classes(Path("one"), cat=5)
    write_classes(Path("rare"), common=5, rare=1)
    for data, message in {
        "nowhere/at/all": "got 'nowhere/at/all', which does not exist",
        "empty": "one sub-folder of images per class, got no images",
        "flat": "one sub-folder of images per class, got images outside",
        "all.tar.gz": r"a folder, an uncompressed \.tar or a timm dataset, got 'all\.tar\.gz'$",
        "one": "got only 'cat'",
        "rare": "got 1 of 'rare'",
        "torch/mnist": "data_root must be the folder that contains 'torch/mnist', got None",
    }.items():
        with pytest.raises(InputError, match=message):
            open_splits(data)
    with pytest.raises(OSError, match="it is not a regular file"):
        open_splits("pipe.tar")
    with pytest.raises(InputError, match=r"data_root is for timm datasets .*, got data 'digits'"):
        open_splits("digits", root="somewhere")


def test_subset_of_training_images_is_stratified_and_keeps_validation(tmp_path: Path) -> None:
    folder = str(write_classes(tmp_path, a=30, b=10))
    splits, smaller, again = (open_splits(folder, validation_share=0.5, training_images=n) for n in (None, 8, 8))
    assert Counter(smaller.train.labels) == {0: 6, 1: 2}
    assert names(smaller.validation) == names(splits.validation)
    assert set(names(smaller.train)) < set(names(splits.train))
    other = open_splits(folder, validation_share=0.5, seed=1, training_images=8)
    assert names(again.train) == names(smaller.train) != names(other.train)
    assert names(open_splits(folder, validation_share=0.5, training_images=20).train) == names(splits.train)
    with pytest.raises(InputError, match="training_images must be 2 to 18, got 19"):
        open_splits(folder, validation_share=0.5, training_images=19)


def test_all_images_of_a_set_without_validation_are_evaluated(tmp_path: Path) -> None:
    images, source, _ = open_evaluation_images(str(write_classes(tmp_path / "test", a=3, b=1)))
    assert (len(images), images.classes) == (4, ("a", "b"))
    assert source == f"all of {tmp_path / 'test'}, which has no validation split"
    write_classes(tmp_path / "both/train", a=3, b=2)
    write_classes(tmp_path / "both/val", a=1, b=1)
    assert len(open_evaluation_images(str(tmp_path / "both"))[0]) == 2


def test_a_torchvision_set_is_indexed(tmp_path: Path) -> None:
    raw = tmp_path / "MNIST/raw"
    raw.mkdir(parents=True)
    for split in ("train", "t10k"):
        (raw / f"{split}-images-idx3-ubyte").write_bytes(struct.pack(">4B3I", 0, 0, 8, 3, 6, 3, 4) + bytes(72))
        (raw / f"{split}-labels-idx1-ubyte").write_bytes(struct.pack(">4BI", 0, 0, 8, 1, 6) + bytes(range(6)))
    splits = open_splits("torch/mnist", root=str(tmp_path))
    image, label = splits.train.load(3)
    assert (image.mode, image.size, label) == ("L", (4, 3), 3)
    assert splits.train.classes[3] == "3 - three"
    assert splits.validation.name(1) == "torch/mnist/validation/1"


def test_error_names_the_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    monkeypatch.delitem(sys.modules, "timm.data.readers.reader_hfds", raising=False)
    with pytest.raises(InputError, match=r"timm cannot open .* 'hfds/x' .* datasets"):
        open_splits("hfds/x", root=str(tmp_path))


class Reader:
    """A fake of timm's reader of a Hugging Face set, which returns open files by index, and the labels."""

    class_to_idx = {"cat": 0, "dog": 1}  # noqa: RUF012

    def __init__(self, labels: tuple[int, ...] = (0, 1) * 3) -> None:
        self.labels = labels

    def __getitem__(self, index: int) -> tuple[io.BytesIO, int]:
        return io.BytesIO(png(value=index) if index else b"no image"), self.labels[index]

    def iter_targets(self) -> Iterator[int]:
        yield from self.labels


UNLABELED = Reader((-1,) * 6)  # as the test splits of competitions


def open_fake(monkeypatch: pytest.MonkeyPatch, **readers: Reader) -> Splits:
    def create_dataset(name: str, *, split: str, **_: object) -> object:
        if split not in readers:
            raise ValueError(f'Unknown split "{split}". Should be one of {[*readers]}.')
        return SimpleNamespace(reader=readers[split])

    monkeypatch.setattr("timm.data.create_dataset", create_dataset)
    return open_splits("hfds/someone/animals")


def test_a_reader_with_random_access_is_indexed(monkeypatch: pytest.MonkeyPatch) -> None:
    splits = open_fake(monkeypatch, train=Reader(), validation=Reader())
    image, label = splits.train.load(3)
    assert (splits.train.classes, image.getpixel((0, 0)), label) == (("cat", "dog"), 3, 1)
    with pytest.raises(UnreadableImage, match=r"^cannot read the image hfds/someone/animals/train/0: it is not"):
        splits.train.load(0)


def test_the_test_split_replaces_a_missing_validation_split(monkeypatch: pytest.MonkeyPatch) -> None:
    splits = open_fake(monkeypatch, train=Reader(), test=Reader())
    assert splits.validation.name(0) == "hfds/someone/animals/test/0"


def test_validation_is_held_out_if_no_other_split_has_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    for others in ({}, {"test": UNLABELED}):
        splits = open_fake(monkeypatch, train=Reader(), **others)
        assert (len(splits.train), len(splits.validation)) == (4, 2)
        assert splits.held_out
    with pytest.raises(InputError, match=r"'hfds/someone/animals' .split 'train'.: some of its images have no label"):
        open_fake(monkeypatch, train=UNLABELED, test=Reader())
    with pytest.raises(InputError, match=r"Should be one of \['train', 'valid'\]"):
        open_fake(monkeypatch, train=Reader(), valid=Reader())
