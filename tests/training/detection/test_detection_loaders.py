import io
import random
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw
from torchvision.models.detection.roi_heads import project_masks_on_boxes

from data.coco import coco_files
from data.same_batches import assert_same
from lambdanets.data.coco.annotations import parse_annotations
from lambdanets.data.coco.images import AnnotatedImages, InMemoryFiles
from lambdanets.data.coco.loader import evaluation_batches
from lambdanets.data.order import BatchSlice
from lambdanets.recipes.detection.digits import recipe as DIGITS
from lambdanets.training.detection.data import open_datasets
from lambdanets.training.detection.loaders import augment, training_batches
from training.detection.tiny_detection import tiny_recipe

RECIPE = replace(DIGITS, image_size=48, jitter=(0.1, 2.0), flip=0.5)


def known_image(*annotations, height=20, width=30):
    """A parsed image with these annotations."""
    image = coco_files.image(1, height=height, width=width)
    content = coco_files.to_json(coco_files.content(*annotations, images=[image]))
    return parse_annotations(content, Path("here")).images[0]


def disc(number, height, width, y, x, radius, **fields):
    """An annotation of a disc."""
    angles = np.linspace(0, 2 * np.pi, 60, endpoint=False)
    points = np.stack([x + radius * np.cos(angles), y + radius * np.sin(angles)], 1).clip(0, (width, height))
    (left, top), (right, bottom) = points.min(0).tolist(), points.max(0).tolist()
    box = [left, top, right - left, bottom - top]
    return coco_files.annotation(number, bbox=box, area=1.0, segmentation=[points.ravel().tolist()], **fields)


def dilated(mask):
    """A mask (h, w), dilated by one pixel."""
    return F.max_pool2d(mask[None].float(), 3, 1, 1)[0] > 0


@pytest.fixture(scope="module")
def drawn():
    """An image with a bright disc on a dark background, and its annotation."""
    height, width, y, x, radius = 61, 97, 34.0, 60.0, 21.0
    image = Image.new("L", (width, height), 10)
    ImageDraw.Draw(image).ellipse([x - radius, y - radius, x + radius, y + radius], fill=250)
    return image, known_image(disc(1, height, width, y, x, radius), height=height, width=width)


def test_masks_follow_scale_crop_and_flip_of_the_image(drawn):
    flipped = cropped = 0
    for seed in range(60):
        random.seed(seed)
        image, target = augment(*drawn, RECIPE)
        assert max(image.shape[1:]) <= 48
        cropped += image.shape[1:] == (48, 48)
        if not len(target["masks"]):
            continue
        mask, shown = target["masks"][0] > 0, image[0] > 0.5
        assert target["masks"].dtype == torch.uint8
        assert not (mask & ~dilated(shown)).any()
        assert not (shown & ~dilated(mask)).any()
        flipped += bool(mask[:, : mask.shape[1] // 2].sum() > mask[:, mask.shape[1] // 2 :].sum())
    assert flipped > 5  # the disc is to the right of the middle
    assert cropped > 5


def test_boxes_enclose_their_masks_and_do_not_exceed_the_object(drawn):
    whole = 0
    for seed in range(60):
        random.seed(seed)
        image, target = augment(*drawn, RECIPE)
        for (left, top, right, bottom), mask in zip(target["boxes"].tolist(), target["masks"], strict=True):
            rows, columns = (mask.any(axis).nonzero().flatten() for axis in (1, 0))
            assert left - 1 <= columns[0]
            assert columns[-1] + 1 <= right + 1
            assert top - 1 <= rows[0]
            assert rows[-1] + 1 <= bottom + 1
            assert 0 <= left < right <= image.shape[2]
            assert 0 <= top < bottom <= image.shape[1]
            if left > 0 and top > 0 and right < image.shape[2] and bottom < image.shape[1]:
                whole += 1
                assert right - left < len(columns) + 2
                assert bottom - top < len(rows) + 2
    assert whole > 10


@pytest.mark.parametrize("jitter", [0.2, 0.4])
def test_mask_targets_are_centered_in_their_boxes(drawn, jitter):
    # torchvision's roi_align shifts by half a pixel to the left and up, so the image is shifted to the right and down
    recipe = replace(RECIPE, image_size=97, jitter=(jitter, jitter), flip=0.0)
    _, target = augment(*drawn, recipe)
    learned = project_masks_on_boxes(target["masks"], target["boxes"], torch.zeros(1), 28)[0]
    width, height = (target["boxes"][0, 2:] - target["boxes"][0, :2]).tolist()
    middles = (torch.arange(28) + 0.5) / 28 - 0.5
    for axis, side in ((0, width), (1, height)):
        assert abs((learned.sum(axis) * middles).sum() / learned.sum()) * side < 0.2  # pixels


def test_box_of_a_cropped_object_is_that_of_its_remaining_mask():
    corner = [0, 0, 30, 0, 30, 4, 4, 4, 4, 20, 0, 20]  # an L: most crops contain one arm, whose box is thin
    known = known_image(coco_files.annotation(1, bbox=[0, 0, 30, 20], segmentation=[corner], area=184))
    recipe = replace(RECIPE, image_size=15, jitter=(2.0, 2.0))  # crops of 15 x 15 pixels
    cut = 0
    for seed in range(40):
        random.seed(seed)
        _, target = augment(Image.new("L", (30, 20)), known, recipe)
        for (left, top, right, bottom), mask in zip(target["boxes"].tolist(), target["masks"], strict=True):
            rows, columns = (mask.any(axis).nonzero().flatten().tolist() for axis in (1, 0))
            assert (left, top, right, bottom) == (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1)
            cut += bottom - top < 5
    assert cut > 5


def test_box_of_an_uncropped_object_is_the_annotated_box():
    known = known_image(coco_files.annotation(1, bbox=[12, 8, 5, 4], segmentation=[[13, 9, 16, 9, 16, 11, 13, 11]]))
    random.seed(0)
    recipe = replace(RECIPE, image_size=28, jitter=(30 / 28, 30 / 28), flip=0.0)  # at scale one, cropped
    _, target = augment(Image.new("L", (30, 20)), known, recipe)
    ((left, top, right, bottom),) = target["boxes"].tolist()
    assert (right - left, top, bottom) == (5, 8, 12)


def test_scale_1_without_flip_leaves_an_image_unchanged(drawn):
    image, known = drawn
    recipe = replace(RECIPE, image_size=97, jitter=(1.0, 1.0), flip=0.0)
    same, target = augment(image, known, recipe)
    assert torch.equal((same * 255).round().to(torch.uint8), torch.from_numpy(np.array(image))[None].expand(3, -1, -1))
    assert target["boxes"].tolist() == [pytest.approx(known.objects[0].box, abs=1e-4)]


def test_labels_are_category_ids_in_order_from_1():
    known = known_image(coco_files.annotation(1, category_id=7), coco_files.annotation(2, category_id=3))
    _, target = augment(Image.new("L", (30, 20)), known, replace(RECIPE, jitter=(1.0, 1.0)))
    assert target["labels"].tolist() == [2, 1]


def test_crowds_are_not_trained_on():
    runs = {"size": [20, 30], "counts": [0, 600]}
    crowd = coco_files.annotation(2, iscrowd=1, segmentation=runs, bbox=[0, 0, 30, 20], area=600, category_id=3)
    known = known_image(coco_files.annotation(1), crowd)
    assert len(known.objects) == 2
    _, target = augment(Image.new("L", (30, 20)), known, replace(RECIPE, jitter=(1.0, 1.0)))
    assert target["labels"].tolist() == [2]


def test_image_without_objects_has_empty_targets():
    image, target = augment(Image.new("RGB", (30, 20)), known_image(), RECIPE)
    assert target["boxes"].shape == (0, 4)
    assert target["labels"].shape == (0,)
    assert target["labels"].dtype == torch.int64
    assert target["masks"].shape == (0, *image.shape[1:])


@pytest.mark.parametrize(("height", "width"), [(1, 5000), (5000, 1)])
def test_one_pixel_wide_image_keeps_its_object(height, width):
    long = max(height, width)
    box = [0, 0, width, height]
    strip = coco_files.annotation(1, bbox=box, segmentation=[[0, 0, width, 0, width, height, 0, height]], area=long)
    known = known_image(strip, height=height, width=width)
    for seed in range(10):
        random.seed(seed)
        image, target = augment(Image.new("L", (width, height), 255), known, RECIPE)
        assert min(image.shape[1:]) == 1
        assert target["masks"].all()
        assert target["boxes"].tolist() == [pytest.approx([0, 0, image.shape[2], image.shape[1]], abs=1e-4)]


def test_objects_without_remaining_pixels_are_left_out():
    speck = coco_files.annotation(1, bbox=[2, 3, 1, 1], segmentation=[[2, 3, 3, 3, 3, 4, 2, 4]], area=1)
    hair = coco_files.annotation(3, bbox=[0, 0, 30, 20], segmentation=[[5, 0, 6, 0, 6, 20, 5, 20]], area=20)
    known = known_image(speck, coco_files.annotation(2), hair)
    _, target = augment(Image.new("L", (30, 20)), known, replace(RECIPE, image_size=15, jitter=(1.0, 1.0)))
    assert len(target["boxes"]) == len(target["labels"]) == len(target["masks"]) == 1


def test_max_objects_are_sampled_again_each_time():
    known = known_image(*(coco_files.annotation(number, bbox=[number, 3, 6, 6]) for number in range(1, 13)))
    recipe = replace(RECIPE, image_size=30, jitter=(1.0, 1.0), flip=0.0, max_objects=3)
    drawn = []
    for seed in (0, 1, 2, 0):
        random.seed(seed)
        _, target = augment(Image.new("L", (30, 20)), known, recipe)
        drawn.append(target["boxes"][:, 0].tolist())
    assert all(len(set(each)) == 3 for each in drawn)
    assert drawn[0] == drawn[3]
    assert drawn[0] != drawn[1] != drawn[2]


def as_png(image):
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def test_images_of_any_mode_become_rgb_in_0_to_1():
    gray = Image.fromarray(np.arange(600, dtype=np.uint16).reshape(20, 30).astype(np.uint8))
    files = {f"{mode}.png": as_png(gray.convert(mode)) for mode in ("L", "RGBA", "P", "1")}
    images = [coco_files.image(number, name) for number, name in enumerate(files, 1)]
    objects = [coco_files.annotation(number, number) for number in range(1, 5)]
    annotations = parse_annotations(coco_files.to_json(coco_files.content(*objects, images=images)), Path("here"))
    some = AnnotatedImages(annotations, InMemoryFiles(files, list(files), "memory"), range(4))
    training = training_batches(replace(RECIPE, batch_size=4), some, BatchSlice())
    for (batch,), objects_left in ((training, 3), (evaluation_batches(some, 4), 0)):
        assert len(batch.images) == 4
        for image in batch.images:
            assert image.shape[0] == 3
            assert image.dtype == torch.float32
            assert image.min() >= 0
            assert image.max() <= 1
        assert [len(target) for target in batch.targets] == [objects_left] * 4


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """A recipe with random scales and batches of 3 images."""
    return tiny_recipe(tmp_path_factory.mktemp("loaders"), batch_size=3, jitter=(0.1, 2.0))


def batches_of(recipe, batch_slice=BatchSlice()):  # noqa: B008 - it is frozen
    return training_batches(recipe, open_datasets(recipe)[0], batch_slice)


def test_detection_batches_do_not_depend_on_workers(recipe):
    expected = list(islice(batches_of(recipe), 2))
    batches = batches_of(replace(recipe, workers=2))
    assert_same(expected, list(batches))
    batches.close()


def test_detection_batches_resume_in_mid_epoch(recipe):
    whole = batches_of(recipe)
    first, second = list(whole), list(whole)
    assert not torch.equal(first[0].images[0], second[0].images[0])
    resumed = batches_of(recipe)
    resumed.load_state_dict({"steps": 1, "steps_per_epoch": whole.steps_per_epoch})
    assert_same([*first[1:], *second], [*resumed, *resumed])


def test_ranks_divide_the_images_of_a_step(recipe):
    step = next(iter(batches_of(recipe)))
    batches = [next(iter(batches_of(recipe, batch_slice=BatchSlice(rank, 3)))) for rank in range(3)]
    assert [len(batch.images) for batch in batches] == [1, 1, 1]
    assert {batch.step_images for batch in batches} == {3}
    for image, batch in zip(step.images, batches, strict=True):
        assert torch.equal(image, batch.images[0])


def test_validation_images_are_in_order_and_unchanged(recipe):
    validation = open_datasets(recipe)[1]
    batches = list(evaluation_batches(validation, 1))
    assert [batch.indices.tolist() for batch in batches] == [[0], [1]]
    for number, batch in enumerate(batches):
        image, known = validation.load(number)
        assert batch.images[0].shape == (3, known.height, known.width)
        assert torch.equal((batch.images[0][0] * 255).round().to(torch.uint8), torch.from_numpy(np.array(image)))


def test_unreadable_image_is_left_out_of_its_batch_and_listed(tmp_path):
    recipe = tiny_recipe(tmp_path, batch_size=4)
    (tmp_path / "train/train_00002.png").write_bytes(b"no image")
    (batch,) = batches_of(recipe)
    assert len(batch.images) == len(batch.targets) == len(batch.indices) == 3
    assert 1 not in batch.indices.tolist()
    assert batch.step_images == 4
    assert [sentence for sentence in batch.unreadable if "train_00002.png: it is not an image" in sentence]
