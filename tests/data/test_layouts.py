"""Folders and tars as people have them: each becomes the right splits and classes, or is refused."""

import itertools
import tarfile
import unicodedata
from collections import Counter
from pathlib import Path

import pytest

from lambdanets.data.datasets import Splits, open_splits
from lambdanets.errors import InputError


def write_files(folder: Path, patterns: str) -> Path:
    """Write 4 empty files for each path of the patterns, which are separated by blanks; "a|b" are alternatives."""
    for pattern in patterns.split():
        for parts in itertools.product(*(part.split("|") for part in pattern.split("/"))):
            for number in range(4):
                path = folder.joinpath(*parts[:-1], f"{number}{parts[-1]}")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
    return folder


def write_tar(folder: Path) -> Path:
    path = folder.with_suffix(".tar")
    with tarfile.open(path, "w") as tar:
        tar.add(folder, arcname="")
    return path


def open_data(folder: Path, patterns: str, kind: str) -> Splits:
    write_files(folder, patterns)
    return open_splits(str(folder if kind == "folder" else write_tar(folder)))


SPLITS = [
    "train|val/a|b/.jpg",
    "Training|Testing/a|b/.jpg",
    "train|dev/a|b/.jpg",
    "train2017|val2017/a|b/.jpg",
    "training_set/training_set/a|b/.jpg test_set/test_set/a|b/.jpg",
    "TrainImages|ValidImages/a|b/.jpg",
    "archive/seg_train/seg_train/a|b/.jpg archive/seg_test/seg_test/a|b/.jpg",
    "train|valid/images/a|b/.jpg",
    "images/train|valid/a|b/.jpg",
]


@pytest.mark.parametrize("kind", ["folder", "tar"])
@pytest.mark.parametrize("patterns", SPLITS)
def test_splits_are_found_by_name_at_any_depth(tmp_path: Path, patterns: str, kind: str) -> None:
    splits = open_data(tmp_path / "d", patterns, kind)
    assert splits.train.classes == ("a", "b")
    for images, words in ((splits.train, {"train"}), (splits.validation, {"val", "dev", "test", "eval"})):
        assert Counter(images.labels) == {0: 4, 1: 4}
        names = [images.name(index)[len(str(tmp_path / "d.tar")) - 4 * (kind == "folder") :] for index in range(8)]
        assert all(any(word in name.lower() for word in words) for name in names), names
    assert not splits.left_out


@pytest.mark.parametrize("kind", ["folder", "tar"])
@pytest.mark.parametrize(
    ("patterns", "classes", "left_out"),
    [
        ("cat|dog/.jpg cow/.jfif horse/.HEIC", ("cat", "cow", "dog"), {".heic": 4}),
        ("train|bus/.jpg", ("bus", "train"), {}),
        ("train_station|test_tube/.jpg", ("test_tube", "train_station"), {}),
        ("cat/persian|siamese/.jpg dog/poodle|beagle/.jpg", ("cat", "dog"), {}),
        ("cat|dog/.jpg cat/.txt .jpg", ("cat", "dog"), {".txt": 4, "outside class folders": 4}),
        ("train/a|b/.jpg test/.jpg", ("a", "b"), {"in test, which is not used": 4}),
        ("train/a|b/images/.jpg val/images/.jpg", ("a", "b"), {"in val, which is not used": 4}),
        ("train|val/bus|image/.jpg train|val/train/x|y/.jpg", ("bus", "image", "train"), {}),
        ("train|val|test/a|b/.jpg", ("a", "b"), {"in test, which is not used": 8}),
        ("cat|dog|@eaDir|.git/.jpg $RECYCLE.BIN/S-1/.jpg __MACOSX/dog|fox/._.tar", ("cat", "dog"), {}),
    ],
)  # fmt: skip
def test_what_is_not_used_is_counted(
    tmp_path: Path, patterns: str, classes: tuple[str, ...], left_out: dict[str, int], kind: str
) -> None:
    splits = open_data(tmp_path / "d", patterns, kind)
    assert splits.train.classes == classes
    assert splits.left_out == left_out


@pytest.mark.parametrize("kind", ["folder", "tar"])
@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        ("fold1|fold2|fold3/cat|dog/.jpg", "fold1, fold2, fold3"),
        ("Entrenamiento|Prueba/cat|dog/.jpg demo/.jpg", "Entrenamiento, Prueba, demo"),
        ("train|other/cat|dog/.jpg", "other, train"),
        ("train_1|train_2|val/cat|dog/.jpg", "train_1, train_2, val"),
        ("train_a|train_b|test_a|test_b/.jpg", "test_a, test_b, train_a, train_b"),
        ("val|test/.jpg", "test, val"),
        ("train|test1/.jpg", "test1, train"),
        ("new/new/train|valid/cat|dog/.jpg test/test/.jpg", "train, valid"),
        ("cat|dog/.jpg pets/pets/cat|dog/.jpg", "cat, dog"),
        ("train|val/cat|dog/left|right/.jpg", "cat, dog"),
        ("a|b/train|test/.jpg", "test, train"),
        ("train|val/JPEGImages|masks/.jpg", "JPEGImages, masks"),
    ],
)
def test_folders_that_may_be_splits_or_classes_are_refused(
    tmp_path: Path, patterns: str, names: str, kind: str
) -> None:
    with pytest.raises(InputError, match=f"must have .*, got .*{names};"):
        open_data(tmp_path / "d", patterns, kind)


@pytest.mark.parametrize("kind", ["folder", "tar"])
def test_class_folders_copied_from_a_mac_are_the_same_classes(tmp_path: Path, kind: str) -> None:
    composed, decomposed = (unicodedata.normalize(form, "caf\xe9") for form in ("NFC", "NFD"))
    patterns = f"train/{composed}|dog/.jpg val/{decomposed}|dog/.jpg val/{decomposed}/.heic"
    splits = open_data(tmp_path / "d", patterns, kind)
    assert splits.train.classes == (composed, "dog")
    assert Counter(splits.validation.labels) == {0: 4, 1: 4}
    assert splits.left_out == {".heic": 4}
