import json
from pathlib import Path

import numpy as np
import pytest
from coco_files import decode_mask

from lambdanets.data.coco.images import AnnotatedImages, open_annotated
from lambdanets.data.coco.scattered_digits import MIN_BRIGHTNESS, write_scattered_digits
from lambdanets.errors import InputError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    write_scattered_digits(folder, 60, 20, seed=1)
    return folder


@pytest.fixture(scope="module")
def training(folder: Path) -> AnnotatedImages:
    return open_annotated(folder / "train.json", folder / "train")


def test_all_annotations_of_the_set_are_valid(folder: Path, training: AnnotatedImages) -> None:
    validation = open_annotated(folder / "val.json", folder)  # the folder contains train/ and val/
    assert (len(training), len(validation)) == (60, 20)
    assert training.problems.lines() == validation.problems.lines() == []


def test_masks_equal_the_pixels_of_the_digits(training: AnnotatedImages) -> None:
    segmentation_types = set()
    for index in range(len(training)):
        image, annotated = training.load(index)
        size = annotated.height, annotated.width
        masks = [decode_mask(obj, *size) for obj in annotated.objects]
        assert image.mode == "L"
        assert (sum(masks, np.zeros(size)) == (np.asarray(image) >= MIN_BRIGHTNESS)).all()
        for obj, mask in zip(annotated.objects, masks, strict=True):
            rows, columns = np.nonzero(mask)
            assert obj.box == (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
            assert obj.area == mask.sum()
            segmentation_types.add(type(obj.segmentation))
    assert len(segmentation_types) == 3  # polygons, RLE, compressed RLE


def test_image_sizes_and_object_counts_are_as_documented(training: AnnotatedImages) -> None:
    images = training.annotations.images
    assert all(64 <= image.height <= 96 and 64 <= image.width <= 128 for image in images)
    assert all(image.height != image.width for image in images)
    digits_per_image = [sum(not obj.crowd for obj in image.objects) for image in images]
    num_crowds = sum(obj.crowd for image in images for obj in image.objects)
    assert digits_per_image.count(0) == 6  # every tenth image
    assert max(digits_per_image) == 6
    assert 1 <= num_crowds <= 20
    assert {obj.category for image in images for obj in image.objects} == set(range(10))


def test_category_ids_have_gaps(training: AnnotatedImages) -> None:
    assert [category.id for category in training.categories] == [1, 4, 7, 10, 13, 16, 19, 22, 25, 28]
    assert [category.name for category in training.categories] == list("0123456789")


def test_files_depend_only_on_the_seed(folder: Path, tmp_path: Path) -> None:
    write_scattered_digits(tmp_path / "same_seed", 60, 20, seed=1)
    write_scattered_digits(tmp_path / "other_seed", 60, 20, seed=2)
    files = {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert len(files) == 82
    assert files == {path: (tmp_path / "same_seed" / path).read_bytes() for path in files}
    assert all(files[path] != (tmp_path / "other_seed" / path).read_bytes() for path in files)


def test_image_does_not_depend_on_the_number_of_images(folder: Path, tmp_path: Path) -> None:
    write_scattered_digits(tmp_path, 3, 20, seed=1)
    assert json.loads((tmp_path / "val.json").read_text()) == json.loads((folder / "val.json").read_text())
    assert (tmp_path / "train/train_00003.png").read_bytes() == (folder / "train/train_00003.png").read_bytes()


def test_rejects_counts_below_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="validation must be at least 1, got 0"):
        write_scattered_digits(tmp_path / "digits", 5, 0, seed=0)
    assert not (tmp_path / "digits").exists()


def test_rejects_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "digits").write_text("a file")
    with pytest.raises(InputError, match=r"cannot write into '.*digits': "):
        write_scattered_digits(tmp_path / "digits", 1, 1, seed=0)
