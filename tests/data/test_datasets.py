import io
import os
import tarfile
from collections import Counter
from pathlib import Path

import pytest
from PIL import Image

from lambdanets.data.datasets import hold_out, open_evaluation_images, open_splits, subset
from lambdanets.data.images import UnreadableImage
from lambdanets.data.labeled_images import LabeledImages
from lambdanets.errors import InputError


def png(value: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("L", (4, 4), value).save(buffer, "PNG")
    return buffer.getvalue()


def write_classes(folder: Path, **counts: int) -> Path:
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            (folder / name / f"{number}.png").write_bytes(png(number))
    return folder


def names(images: LabeledImages) -> list[str]:
    return [images.name(index) for index in range(len(images))]


def class_counts(images: LabeledImages, classes: tuple[str, ...]) -> dict[str, int]:
    return dict(Counter(classes[label] for label in images.labels))


def test_hold_out_of_digits_is_stratified_by_class() -> None:
    splits = open_splits("digits")
    assert (len(splits.train), len(splits.validation)) == (1437, 360)
    assert splits.classes == tuple("0123456789")
    assert set(class_counts(splits.validation, splits.classes).values()) <= set(range(34, 38))


def test_digits_are_8_by_8_gray_with_full_range() -> None:
    splits = open_splits("digits")
    image, label = splits.train.load(0)
    assert (image.mode, image.size, label) == ("L", (8, 8), splits.train.labels[0])
    assert max(splits.train.load(index)[0].getextrema()[1] for index in range(20)) == 255
    assert splits.train.name(0).startswith("digits/")


def test_hold_out_depends_on_the_seed() -> None:
    def held_out(seed: int) -> list[str]:
        return names(open_splits("digits", seed=seed).validation)

    assert held_out(1) == held_out(1) != held_out(2)


def test_held_out_images_are_not_in_the_training_set() -> None:
    splits = open_splits("digits", validation_share=0.5)
    assert len({*names(splits.train), *names(splits.validation)}) == 1797


@pytest.mark.parametrize("fraction", [0.0, 1e-4, 0.99, 1.0, -1.0, float("nan")])
def test_rejects_a_validation_share_out_of_range(fraction: float) -> None:
    with pytest.raises(InputError, match=r"^validation_share must be .*, got"):
        open_splits("digits", validation_share=fraction)


def test_rejects_a_negative_seed() -> None:
    with pytest.raises(InputError, match="seed"):
        open_splits("digits", seed=-1)


def test_class_folders_are_sorted_by_name_and_searched_recursively(tmp_path: Path) -> None:
    write_classes(tmp_path, dog=4, cat=4)
    (tmp_path / "cat/nested").mkdir()
    (tmp_path / "cat/nested/x.png").write_bytes(png(0))
    (tmp_path / "empty").mkdir()
    (tmp_path / "readme.txt").touch()
    splits = open_splits(str(tmp_path))
    assert splits.classes == ("cat", "dog")
    train, validation = (Counter(class_counts(images, splits.classes)) for images in (splits.train, splits.validation))
    assert train + validation == {"cat": 5, "dog": 4}


def test_hold_out_of_few_images_has_every_class(tmp_path: Path) -> None:
    splits = open_splits(str(write_classes(tmp_path, a=2, b=2, c=2)))
    assert set(splits.validation.labels) == set(splits.train.labels) == {0, 1, 2}


def test_splits_do_not_depend_on_the_order_in_the_file_system(tmp_path: Path) -> None:
    for root, order in (("ascending", range(9)), ("descending", reversed(range(9)))):
        for number in order:
            for name in ("a", "b"):
                path = tmp_path / root / name / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(png(0))
    ascending, descending = (
        [Path(name).relative_to(tmp_path / root).as_posix() for name in names(open_splits(str(tmp_path / root)).train)]
        for root in ("ascending", "descending")
    )
    assert ascending == descending


def test_validation_has_the_class_indices_of_training(tmp_path: Path) -> None:
    write_classes(tmp_path / "train", a=2, b=2)
    write_classes(tmp_path / "val", b=1)
    splits = open_splits(str(tmp_path))
    assert splits.validation.labels == [1]
    assert splits.validation.load(0)[1] == 1


def test_rejects_a_validation_class_that_is_not_in_training(tmp_path: Path) -> None:
    write_classes(tmp_path / "train", a=2, b=2)
    write_classes(tmp_path / "val", zebra=1)
    with pytest.raises(InputError, match=r"among the 2 of training \('a', 'b'\), got 'zebra'"):
        open_splits(str(tmp_path))


def test_open_splits_does_not_open_images(tmp_path: Path) -> None:
    for number in range(4):
        for name in ("a", "b"):
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / f"{number}.png").write_text("not an image")
    splits = open_splits(str(tmp_path))
    with pytest.raises(UnreadableImage):
        splits.train.load(0)


def test_rejects_a_path_that_does_not_exist() -> None:
    with pytest.raises(InputError, match="got 'nowhere/at/all', which does not exist"):
        open_splits("nowhere/at/all")


def test_rejects_a_file_that_is_not_a_tar(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(0))
    with pytest.raises(InputError, match=r"a folder of images or an uncompressed \.tar, got"):
        open_splits(str(tmp_path / "a.png"))


@pytest.mark.parametrize("name", ["empty", "empty classes", "all.zip", "all.tar.gz", ""])
def test_rejects_data_without_images(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    for label in ("cat", "dog"):
        (tmp_path / "empty classes" / label).mkdir(parents=True)
    (tmp_path / "all.zip").write_bytes(b"PK\x05\x06" + bytes(18))
    (tmp_path / "all.tar.gz").touch()
    with pytest.raises(InputError, match=r"got no images|an uncompressed \.tar, got|got '', which does not exist"):
        open_splits(str(tmp_path / name) if name else "")


def test_rejects_a_named_pipe_without_opening_it(tmp_path: Path) -> None:
    for name in ("pipe", "pipe.tar"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(InputError, match=r"uncompressed"):
            open_splits(str(tmp_path / name))


def test_rejects_images_outside_class_folders(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(0))
    with pytest.raises(InputError, match="one sub-folder of images per class, got images outside"):
        open_splits(str(tmp_path))


def test_rejects_a_single_class(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="got only 'cat'"):
        open_splits(str(write_classes(tmp_path, cat=5)))


def test_hold_out_rejects_a_class_with_one_image(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="got 1 of 'rare'"):
        open_splits(str(write_classes(tmp_path, common=5, rare=1)))


def test_rejects_an_empty_data_root() -> None:
    with pytest.raises(InputError, match="data_root must be a folder, got ''"):
        open_splits("torch/cifar10", root="")


def test_rejects_data_root_without_a_timm_dataset() -> None:
    with pytest.raises(InputError, match=r"data_root is for timm datasets .*, got data 'digits'"):
        open_splits("digits", root="somewhere")


def test_subset_of_training_images_is_stratified_and_keeps_validation(tmp_path):
    splits = open_splits(str(write_classes(tmp_path, a=30, b=10)), validation_share=0.5)
    smaller = subset(splits, 8, seed=0)
    assert Counter(smaller.train.labels) == {0: 6, 1: 2}
    assert names(smaller.validation) == names(splits.validation)
    assert set(names(smaller.train)) < set(names(splits.train))
    assert names(subset(splits, 8, seed=0).train) == names(smaller.train) != names(subset(splits, 8, seed=1).train)


def test_subset_of_none_or_all_images_returns_the_same_splits():
    splits = open_splits("digits")
    assert subset(splits, None, seed=0) is splits
    assert subset(splits, len(splits.train), seed=0) is splits


@pytest.mark.parametrize("count", [9, 1430, 5000])
def test_subset_rejects_an_impossible_number_of_images(count):
    with pytest.raises(
        InputError, match=rf"training_images must be 1437, or 10 \(one per class\) to 1427, got {count}"
    ):
        subset(open_splits("digits"), count, seed=0)


def test_subset_rejects_a_class_with_one_image(tmp_path):
    write_classes(tmp_path / "train", a=1, b=10)
    write_classes(tmp_path / "val", a=1, b=1)
    with pytest.raises(InputError, match="at least 2 images per class to be divided, got 1 of 'a'"):
        subset(open_splits(str(tmp_path)), 5, seed=0)


def test_fingerprint_covers_the_test_set_of_a_hold_out(tmp_path):
    write_classes(tmp_path / "train", a=4, b=4)
    write_classes(tmp_path / "val", a=1, b=1)
    before = hold_out(open_splits(str(tmp_path)), 0.25, 0).fingerprint
    next((tmp_path / "val/a").iterdir()).rename(tmp_path / "val/a/another.png")
    assert hold_out(open_splits(str(tmp_path)), 0.25, 0).fingerprint != before


def test_all_images_of_a_set_without_validation_are_evaluated(tmp_path):
    found = open_evaluation_images(str(write_classes(tmp_path / "test", a=3, b=1)))
    assert (len(found.images), found.classes) == (4, ("a", "b"))
    assert found.source == f"all of {tmp_path / 'test'}, which has no validation split"
    write_classes(tmp_path / "both/train", a=3, b=2)
    write_classes(tmp_path / "both/val", a=1, b=1)
    assert len(open_evaluation_images(str(tmp_path / "both")).images) == 2


def test_a_test_tar_next_to_a_validation_tar_is_evaluated(tmp_path):
    for name, count in (("test", 3), ("val", 1)):
        folder = write_classes(tmp_path / name, a=count, b=count)
        with tarfile.open(tmp_path / f"{name}.tar", "w") as tar:
            tar.add(folder, arcname=".")
    assert len(open_evaluation_images(str(tmp_path / "test.tar")).images) == 6
