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
