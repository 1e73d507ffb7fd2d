"""Semantic masks: overlapping objects and crowd regions."""

import numpy as np
import pytest

from lambdanets.data.coco.annotations import AnnotatedImage, Object
from lambdanets.data.coco.images import IGNORED, make_semantic_mask
from lambdanets.data.coco.segmentations import encode_rle

HEIGHT, WIDTH = 6, 8


def rectangle(top, bottom, left, right, category=0, crowd=False, area=None):
    mask = np.zeros((HEIGHT, WIDTH), bool)
    mask[top:bottom, left:right] = True
    area = mask.sum() if area is None else area
    return Object(1, category, (left, top, right, bottom), float(area), crowd, encode_rle(mask, mask.shape))


def semantic_mask(*objects):
    return make_semantic_mask(AnnotatedImage(1, "a.png", HEIGHT, WIDTH, objects))


SMALL, LARGE = rectangle(1, 3, 1, 3, category=0), rectangle(0, 4, 0, 4, category=4)


@pytest.mark.parametrize("objects", [(SMALL, LARGE), (LARGE, SMALL)], ids=["small first", "large first"])
def test_overlapping_pixels_belong_to_the_smaller_object(objects):
    classes = semantic_mask(*objects)
    assert classes.dtype == np.uint8
    assert classes.shape == (HEIGHT, WIDTH)
    assert (classes[1:3, 1:3] == 1).all()
    assert classes[0, 0] == 5
    assert np.bincount(classes.ravel()).tolist() == [HEIGHT * WIDTH - 16, 4, 0, 0, 0, 12]


def test_overlapping_pixels_belong_to_the_last_of_equally_large_objects():
    first, second = rectangle(0, 2, 0, 2, category=0), rectangle(1, 3, 1, 3, category=1)
    assert (semantic_mask(first, second)[1, 1], semantic_mask(second, first)[1, 1]) == (2, 1)


def test_crowd_pixels_are_ignored_unless_an_object_covers_them():
    crowd = rectangle(0, 4, 0, 6, category=2, crowd=True, area=1)  # the smallest by the area in the file
    for objects in ((crowd, SMALL), (SMALL, crowd)):
        classes = semantic_mask(*objects)
        assert (classes[1:3, 1:3] == 1).all()
        assert np.count_nonzero(classes == IGNORED) == 24 - 4
        assert np.count_nonzero(classes == 0) == HEIGHT * WIDTH - 24


def test_an_image_without_objects_is_background():
    assert not semantic_mask().any()
