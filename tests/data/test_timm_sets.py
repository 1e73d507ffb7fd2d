import io
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from data.coco.coco_files import png
from lambdanets.data.datasets import Splits, open_splits
from lambdanets.data.images import UnreadableImage
from lambdanets.errors import InputError


def test_a_torchvision_set_is_indexed(tmp_path: Path) -> None:
    raw = tmp_path / "MNIST/raw"
    raw.mkdir(parents=True)
    for split in ("train", "t10k"):
        (raw / f"{split}-images-idx3-ubyte").write_bytes(struct.pack(">4B3I", 0, 0, 8, 3, 6, 3, 4) + bytes(72))
        (raw / f"{split}-labels-idx1-ubyte").write_bytes(struct.pack(">4BI", 0, 0, 8, 1, 6) + bytes(range(6)))
    splits = open_splits("torch/mnist", root=str(tmp_path))
    image, label = splits.train.load(3)
    assert (image.mode, image.size, label) == ("L", (4, 3), 3)
    assert splits.classes[3] == "3 - three"
    assert splits.validation.name(1) == "torch/mnist/validation/1"


def test_error_names_the_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    monkeypatch.delitem(sys.modules, "timm.data.readers.reader_hfds", raising=False)
    with pytest.raises(InputError, match=r"timm cannot open .* 'hfds/x' .* datasets"):
        open_splits("hfds/x", root=str(tmp_path))


def test_rejects_a_torchvision_set_without_data_root() -> None:
    with pytest.raises(InputError, match="data_root must be the folder that contains 'torch/mnist', got None"):
        open_splits("torch/mnist")


class IndexedReader:
    """A fake of timm's reader of a Hugging Face set, which returns open files by index, and the labels."""

    class_to_idx = {"cat": 0, "dog": 1}  # noqa: RUF012

    def __getitem__(self, index: int) -> tuple[io.BytesIO, int]:
        return io.BytesIO(png(value=index) if index else b"no image"), index % 2

    def iter_targets(self) -> Iterator[int]:
        yield from (index % 2 for index in range(6))


class UnlabeledReader(IndexedReader):
    """A fake of a split without labels, as the test splits of competitions."""

    def iter_targets(self) -> Iterator[int]:
        yield from [-1] * 6


def open_fake(monkeypatch: pytest.MonkeyPatch, **readers: IndexedReader) -> Splits:
    def create_dataset(name: str, *, split: str, **_: object) -> object:
        if split not in readers:
            raise ValueError(f"Unknown split {split!r}.")
        return SimpleNamespace(reader=readers[split])

    monkeypatch.setattr("timm.data.create_dataset", create_dataset)
    return open_splits("hfds/someone/animals")


def test_a_reader_with_random_access_is_indexed(monkeypatch: pytest.MonkeyPatch) -> None:
    splits = open_fake(monkeypatch, train=IndexedReader(), validation=IndexedReader())
    image, label = splits.train.load(3)
    assert (splits.classes, image.getpixel((0, 0)), label) == (("cat", "dog"), 3, 1)
    with pytest.raises(UnreadableImage, match=r"^cannot read the image hfds/someone/animals/train/0: it is not"):
        splits.train.load(0)


def test_the_test_split_replaces_a_missing_validation_split(monkeypatch: pytest.MonkeyPatch) -> None:
    splits = open_fake(monkeypatch, train=IndexedReader(), test=IndexedReader())
    assert splits.validation.name(0) == "hfds/someone/animals/test/0"


def test_validation_is_held_out_if_no_other_split_has_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    for others in ({}, {"test": UnlabeledReader()}):
        splits = open_fake(monkeypatch, train=IndexedReader(), **others)
        assert (len(splits.train), len(splits.validation)) == (4, 2)
        assert splits.held_out


def test_a_split_without_labels_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"'hfds/someone/animals' .split 'train'.: some of its images have no label"):
        open_fake(monkeypatch, train=UnlabeledReader(), test=IndexedReader())
