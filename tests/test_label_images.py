"""Label images and measurements of detected objects."""

import numpy as np
import pytest
import torch
from PIL import Image

from lambdanets.inference.detections import COLUMNS, Detections, measure_objects


def detections(boxes, scores, size=(20, 30)):
    masks = torch.zeros(len(boxes), 1, *size)
    for mask, (top, left, bottom, right) in zip(masks, boxes, strict=True):
        mask[0, top:bottom, left:right] = 0.9
    corners = torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4)[:, [1, 0, 3, 2]]
    labels = torch.arange(len(boxes)) % 2 + 1
    outputs = {"boxes": corners, "masks": masks, "scores": torch.tensor(scores), "labels": labels}
    return Detections.from_outputs(outputs, ("nucleus", "debris"))


def test_labels_are_sorted_by_score_and_the_best_object_is_on_top():
    found = detections([(0, 0, 10, 10), (5, 5, 15, 15), (12, 20, 18, 28)], [0.6, 0.9, 0.7])
    labels, visible = found.label_image(0.5)
    assert labels.dtype == np.uint16
    assert visible.scores.tolist() == pytest.approx([0.9, 0.7, 0.6])
    assert labels[7, 7] == 1
    assert labels[15, 25] == 2
    assert labels[2, 2] == 3
    assert (labels == 1).sum() == 100
    assert (labels == 3).sum() == 75
    # hidden and uncertain objects are left out
    found = detections([(2, 2, 4, 4), (0, 0, 10, 10), (12, 12, 14, 14), (15, 0, 18, 3)], [0.6, 0.9, 0.4, 0.5])
    labels, visible = found.label_image(0.5)
    assert visible.scores.tolist() == pytest.approx([0.9, 0.5])
    assert np.unique(labels).tolist() == [0, 1, 2]


@pytest.mark.parametrize("boxes", [[], [(0, 0, 20, 30)]], ids=["no object", "no background"])
def test_images_may_have_no_object_or_no_background(boxes):
    labels, visible = detections(boxes, [0.9] * len(boxes)).label_image(0.5)
    rows = measure_objects(Image.new("L", (30, 20)), labels, visible)
    assert labels.min() == labels.max() == len(rows) == len(boxes)


def test_measurements_are_those_of_the_pixels():
    image = np.zeros((20, 30), np.uint8)
    image[2:6, 10:20] = 100
    image[5, 19] = 200
    found = detections([(2, 10, 6, 20), (10, 0, 12, 2)], [0.8, 0.9]).label_image(0.5)
    second, first = measure_objects(Image.fromarray(image), *found)
    assert (first["object"], first["class"], second["class"]) == (2, "nucleus", "debris")
    assert first["score"] == pytest.approx(0.8)
    assert (first["area"], first["row"], first["column"]) == (40, 3.5, 14.5)
    assert [first[side] for side in ("top", "left", "bottom", "right")] == [2, 10, 6, 20]
    assert first["mean_intensity"] == pytest.approx(102.5)
    assert (first["min_intensity"], first["max_intensity"]) == (100, 200)
    assert first["diameter"] == round((4 * 40 / np.pi) ** 0.5, 4)
    assert set(first) == set(COLUMNS) - {"image"}
