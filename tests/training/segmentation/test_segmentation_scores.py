"""Scores of semantic segmentation, compared with loops over pixels."""

import itertools
import math

import numpy as np
import pytest

from lambdanets.inference.segmentation_scores import IGNORED, count_image, summarize

CLASSES = ("background", "a", "b", "unused")


def random_maps(seed):
    """A target with blocks of classes and ignored pixels, and a prediction that differs in a third of the blocks."""
    random = np.random.default_rng(seed)
    height, width = random.integers(9, 25, 2)
    blocks = random.choice([0, 1, 2, IGNORED], (9, 9))
    changed = np.where(random.random((9, 9)) < 0.3, random.integers(0, 3, (9, 9)), blocks)
    target, predicted = (
        np.kron(block_map, np.ones((3, 3), int))[:height, :width].astype(np.uint8) for block_map in (blocks, changed)
    )
    predicted[predicted == IGNORED] = 1
    return predicted, target


def boundary_pixels(labels, class_index):
    height, width = labels.shape
    boundary = []
    for y, x in itertools.product(range(height), range(width)):
        neighbors = ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1))
        inside = [labels[n] for n in neighbors if 0 <= n[0] < height and 0 <= n[1] < width]
        if labels[y, x] == class_index and any(label not in (class_index, IGNORED) for label in inside):
            boundary.append((y, x))
    return boundary


def boundary_f1_by_loops(predicted, target, class_index):
    predicted = np.where(target == IGNORED, IGNORED, predicted)
    pixels, true_pixels = boundary_pixels(predicted, class_index), boundary_pixels(target, class_index)
    if not pixels and not true_pixels:
        return None
    if not pixels or not true_pixels:
        return 0.0
    precision, recall = (
        sum(any(math.dist(p, q) <= 2 for q in others) for p in points) / len(points)
        for points, others in ((pixels, true_pixels), (true_pixels, pixels))
    )
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def test_dice_and_iou_equal_sums_over_the_pixels_of_all_images():
    maps = [random_maps(seed) for seed in range(5)]
    scores = summarize((count_image(*pair, len(CLASSES)) for pair in maps), CLASSES)
    *found, unused = scores["classes"]
    pixels = [pair for predicted, target in maps for pair in zip(predicted.flat, target.flat, strict=True)]
    valid = [(p, t) for p, t in pixels if t != IGNORED]
    for class_index, row in enumerate(found):
        p, t = (sum(pair[i] == class_index for pair in valid) for i in range(2))
        intersection = sum(pair == (class_index, class_index) for pair in valid)
        assert row["dice"] == pytest.approx(2 * intersection / (p + t))
        assert row["iou"] == pytest.approx(intersection / (p + t - intersection))
        assert 0.3 < row["iou"] < 1
    assert unused == {"name": "unused", "dice": None, "iou": None, "boundary_f1": None}
    assert scores["dice"] == pytest.approx((found[1]["dice"] + found[2]["dice"]) / 2)


@pytest.mark.parametrize("seed", range(4))
def test_boundary_f1_equals_loops_over_pairs_of_pixels(seed):
    predicted, target = random_maps(seed)
    counts = count_image(predicted, target, 3)
    expected = [boundary_f1_by_loops(predicted, target, class_index) for class_index in range(3)]
    assert counts[1] == pytest.approx(expected)
    assert any(0 < value < 1 for value in counts[1])


def test_boundary_f1_is_the_mean_over_images_with_a_boundary():
    square = np.zeros((9, 9), np.uint8)
    square[2:6, 2:6] = 1
    empty = np.zeros_like(square)
    pairs = [(square, square), (square, empty), (empty, empty)]
    scores = summarize((count_image(*pair, 2) for pair in pairs), ("background", "square"))
    assert [row["boundary_f1"] for row in scores["classes"]] == [0.5, 0.5]  # 1, 0 and none


def test_scores_without_any_object_are_none():
    background = np.zeros((9, 9), np.uint8)
    scores = summarize([count_image(background, background, 3)], CLASSES[:3])
    assert scores["dice"] is scores["iou"] is scores["boundary_f1"] is None
