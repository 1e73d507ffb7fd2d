import random
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw
from torchvision.models.detection.roi_heads import project_masks_on_boxes

from data.coco import coco_files
from lambdanets.data.coco.annotations import read_annotations
from lambdanets.recipes.scattered_digits import recipe as DIGITS
from lambdanets.tasks.detection import augment

RECIPE = replace(DIGITS, image_size=48, jitter=(0.1, 2.0), flip=0.5)


def annotated_image(*annotations, height=20, width=30):
    """Return a parsed image with these annotations."""
    image = coco_files.image(1, height=height, width=width)
    with TemporaryDirectory() as folder:
        content = coco_files.content(*annotations, images=[image])
        return read_annotations(coco_files.write(Path(folder, "a.json"), content)).images[0]


def disc(number, height, width, y, x, radius, **fields):
    """Return the annotation of a disc with center (y, x)."""
    angles = np.linspace(0, 2 * np.pi, 60, endpoint=False)
    points = np.stack([x + radius * np.cos(angles), y + radius * np.sin(angles)], 1).clip(0, (width, height))
    (left, top), (right, bottom) = points.min(0).tolist(), points.max(0).tolist()
    box = [left, top, right - left, bottom - top]
    return coco_files.annotation(number, bbox=box, area=1.0, segmentation=[points.ravel().tolist()], **fields)


def dilate(mask):
    """Dilate a mask (h, w) by one pixel."""
    return F.max_pool2d(mask[None].float(), 3, 1, 1)[0] > 0


@pytest.fixture(scope="module")
def disc_image():
    """An image with a bright disc on a dark background, and its annotation."""
    height, width, y, x, radius = 61, 97, 34.0, 60.0, 21.0
    image = Image.new("L", (width, height), 10)
    ImageDraw.Draw(image).ellipse([x - radius, y - radius, x + radius, y + radius], fill=250)
    return image, annotated_image(disc(1, height, width, y, x, radius), height=height, width=width)


def test_masks_follow_scale_crop_and_flip_of_the_image(disc_image):
    num_flipped = num_cropped = 0
    for seed in range(60):
        random.seed(seed)
        image, target = augment(*disc_image, RECIPE)
        assert max(image.shape[1:]) <= 48
        num_cropped += image.shape[1:] == (48, 48)
        if not len(target["masks"]):
            continue
        mask, bright = target["masks"][0] > 0, image[0] > 0.5
        assert target["masks"].dtype == torch.uint8
        assert not (mask & ~dilate(bright)).any()
        assert not (bright & ~dilate(mask)).any()
        num_flipped += bool(mask[:, : mask.shape[1] // 2].sum() > mask[:, mask.shape[1] // 2 :].sum())
    assert num_flipped > 5  # the disc is in the right half of the image
    assert num_cropped > 5


def test_boxes_enclose_their_masks_to_a_pixel_and_are_in_the_image(disc_image):
    num_uncut = 0
    for seed in range(60):
        random.seed(seed)
        image, target = augment(*disc_image, RECIPE)
        for (left, top, right, bottom), mask in zip(target["boxes"].tolist(), target["masks"], strict=True):
            rows, columns = (mask.any(axis).nonzero().flatten().tolist() for axis in (1, 0))
            tight = (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1)
            assert (left, top, right, bottom) == pytest.approx(tight, abs=1.5)
            assert 0 <= left < right <= image.shape[2]
            assert 0 <= top < bottom <= image.shape[1]
            num_uncut += left > 0 and top > 0 and right < image.shape[2] and bottom < image.shape[1]
    assert num_uncut > 10


@pytest.mark.parametrize("jitter", [0.2, 0.4])
def test_mask_targets_are_centered_in_their_boxes(disc_image, jitter):
    # augment compensates for torchvision's roi_align, which shifts masks left and up by half a pixel
    recipe = replace(RECIPE, image_size=97, jitter=(jitter, jitter), flip=0.0)
    _, target = augment(*disc_image, recipe)
    mask_target = project_masks_on_boxes(target["masks"], target["boxes"], torch.zeros(1), 28)[0]
    width, height = (target["boxes"][0, 2:] - target["boxes"][0, :2]).tolist()
    positions = (torch.arange(28) + 0.5) / 28 - 0.5
    for axis, side in ((0, width), (1, height)):
        assert abs((mask_target.sum(axis) * positions).sum() / mask_target.sum()) * side < 0.2  # pixels


def test_box_of_a_cropped_object_encloses_its_remaining_mask():
    corner = [0, 0, 30, 0, 30, 4, 4, 4, 4, 20, 0, 20]  # an L shape; most crops contain only one arm, whose box is thin
    annotated = annotated_image(coco_files.annotation(1, bbox=[0, 0, 30, 20], segmentation=[corner], area=184))
    recipe = replace(RECIPE, image_size=15, jitter=(2.0, 2.0))  # crops of 15 x 15 pixels
    num_thin = 0
    for seed in range(40):
        random.seed(seed)
        _, target = augment(Image.new("L", (30, 20)), annotated, recipe)
        for (left, top, right, bottom), mask in zip(target["boxes"].tolist(), target["masks"], strict=True):
            rows, columns = (mask.any(axis).nonzero().flatten().tolist() for axis in (1, 0))
            assert (left, top, right, bottom) == (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1)
            num_thin += bottom - top < 5
    assert num_thin > 5


def test_labels_number_the_category_ids_and_crowds_are_left_out():
    runs = {"size": [20, 30], "counts": [0, 600]}
    crowd = coco_files.annotation(2, iscrowd=1, segmentation=runs, bbox=[0, 0, 30, 20], area=600, category_id=3)
    annotated = annotated_image(coco_files.annotation(1, category_id=7), crowd)
    _, target = augment(Image.new("L", (30, 20)), annotated, replace(RECIPE, jitter=(1.0, 1.0)))
    assert target["labels"].tolist() == [2]


def test_objects_without_remaining_pixels_are_dropped():
    pixel = coco_files.rectangle(1, 2, 3, 3, 4)
    thin_line = coco_files.annotation(3, bbox=[0, 0, 30, 20], segmentation=[[5, 0, 6, 0, 6, 20, 5, 20]], area=20)
    annotated = annotated_image(pixel, coco_files.annotation(2), thin_line)
    _, target = augment(Image.new("L", (30, 20)), annotated, replace(RECIPE, image_size=15, jitter=(1.0, 1.0)))
    assert len(target["boxes"]) == len(target["labels"]) == len(target["masks"]) == 1


def test_each_pass_samples_another_subset_of_max_objects():
    annotated = annotated_image(*(coco_files.rectangle(x, x, 3, x + 6, 9) for x in range(1, 13)))
    recipe = replace(RECIPE, image_size=30, jitter=(1.0, 1.0), flip=0.0, max_objects=3)
    sampled = []
    for seed in (0, 1, 2, 0):
        random.seed(seed)
        _, target = augment(Image.new("L", (30, 20)), annotated, recipe)
        sampled.append(target["boxes"][:, 0].tolist())
    assert all(len(set(objects)) == 3 for objects in sampled)
    assert sampled[0] == sampled[3]
    assert sampled[0] != sampled[1] != sampled[2]
