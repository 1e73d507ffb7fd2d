import json
from pathlib import Path

import numpy as np
import pytest
from coco_files import decode_mask

from lambdanets.data.coco.images import AnnotatedImages, open_annotated
from lambdanets.data.coco.scattered_digits import MIN_BRIGHTNESS, write_scattered_digits
from lambdanets.data.coco.sets import open_digits


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    write_scattered_digits(folder, 60, 20, seed=1)
    return folder


@pytest.fixture(scope="module")
def training(folder: Path) -> AnnotatedImages:
    return open_annotated(folder / "train.json", folder / "train")


def test_the_set_of_quicktests_has_not_changed() -> None:
    assert [images.fingerprint[:16] for images in open_digits()] == ["40756617185f938f", "06708230ec790cba"]


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


def test_sizes_counts_and_categories_are_as_documented(folder: Path, training: AnnotatedImages) -> None:
    validation = open_annotated(folder / "val.json", folder)  # the folder contains train/ and val/
    assert (len(training), len(validation)) == (60, 20)
    assert training.problems.lines() == validation.problems.lines() == []
    images = training.annotations.images
    assert all(64 <= image.height <= 96 and 64 <= image.width <= 128 for image in images)
    assert all(image.height != image.width for image in images)
    digits_per_image = [sum(not obj.crowd for obj in image.objects) for image in images]
    assert digits_per_image.count(0) == 6  # every tenth image
    assert max(digits_per_image) == 6
    assert 1 <= sum(obj.crowd for image in images for obj in image.objects) <= 20
    assert {obj.category for image in images for obj in image.objects} == set(range(10))
    assert [(category.id, category.name) for category in training.annotations.categories] == [
        (3 * digit + 1, str(digit)) for digit in range(10)
    ]


def test_files_depend_only_on_the_seed_and_not_on_their_number(folder: Path, tmp_path: Path) -> None:
    write_scattered_digits(tmp_path / "same_seed", 3, 20, seed=1)
    write_scattered_digits(tmp_path / "other_seed", 3, 20, seed=2)
    same, other = (
        {path.relative_to(root): path.read_bytes() for path in root.rglob("*.*") if path.name != "train.json"}
        for root in (tmp_path / "same_seed", tmp_path / "other_seed")
    )
    assert len(same) == 24
    for path, content in same.items():
        assert content == (folder / path).read_bytes() != other[path]
    assert len(json.loads((tmp_path / "same_seed/train.json").read_text())["images"]) == 3
