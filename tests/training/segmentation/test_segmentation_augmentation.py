"""Training crops: image and semantic mask agree, and padding is ignored."""

import random
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from lambdanets.data.coco.annotations import AnnotatedImage, Object
from lambdanets.data.coco.images import IGNORED
from lambdanets.data.coco.segmentations import encode_rle
from lambdanets.tasks.recipes import SegmentationRecipe
from lambdanets.tasks.segmentation import augment

RECIPE = SegmentationRecipe(data="digits", image_size=32, rotate=True, mean=(0, 0, 0), std=(1, 1, 1))


def white_object_on_black(height, width, seed=0):
    """An image whose white pixels are an object of category 2."""
    mask = np.random.default_rng(seed).random((-(-height // 6), -(-width // 6))) < 0.4
    mask = np.kron(mask, np.ones((6, 6), bool))[:height, :width]
    annotated = Object(1, 2, (0, 0, width, height), float(mask.sum()), False, encode_rle(mask, mask.shape))
    image = Image.fromarray((mask * 255).astype(np.uint8))
    return image, AnnotatedImage(1, "a.png", height, width, (annotated,))


@pytest.mark.parametrize("size", [(70, 50), (20, 45), (9, 7), (32, 32)])
def test_image_and_semantic_mask_are_augmented_alike(size):
    random.seed(0)
    for jitter in ((1.0, 1.0), (0.5, 2.0)):
        for _ in range(8):
            crop, target = augment(*white_object_on_black(*size), replace(RECIPE, jitter=jitter))
            classes = target["semantic_mask"]
            assert crop.shape == (3, 32, 32)
            assert classes.shape == (32, 32)
            assert set(classes.unique().tolist()) <= {0, 3, IGNORED}
            valid = classes != IGNORED
            mismatch = (crop[0] > 0.5) != (classes == 3)
            assert mismatch[valid].float().mean() < (0.15 if jitter[0] < 1 else 1e-9)  # scaling blurs the edges


def test_padding_is_0_in_the_image_and_ignored_in_the_semantic_mask():
    random.seed(1)
    image, annotated = white_object_on_black(20, 45)
    recipe = replace(RECIPE, jitter=(1.0, 1.0), rotate=False, mean=(0.5, 0.5, 0.5))
    crop, target = augment(image, annotated, recipe)
    padding = target["semantic_mask"] == IGNORED
    assert padding.sum() == 12 * 32
    assert not crop[:, padding].any()
    assert (crop[:, ~padding].abs() == 0.5).all()


def test_flips_and_rotations_give_all_eight_orientations():
    random.seed(0)
    image, annotated = white_object_on_black(32, 32, seed=3)
    recipe = replace(RECIPE, jitter=(1.0, 1.0))
    semantic_masks = {augment(image, annotated, recipe)[1]["semantic_mask"].numpy().tobytes() for _ in range(80)}
    assert len(semantic_masks) == 8
    fixed = replace(recipe, rotate=False, flip=0.0)
    assert len({augment(image, annotated, fixed)[1]["semantic_mask"].numpy().tobytes() for _ in range(9)}) == 1
