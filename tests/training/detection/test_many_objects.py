"""Images with many objects: memory and time are not proportional to objects times pixels."""

import io
import json
import random
import resource
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from lambdanets.data.coco.annotations import parse_annotations
from lambdanets.data.coco.images import AnnotatedImages, InMemoryFiles
from lambdanets.inference.detection_evaluation import DetectionEvaluator
from lambdanets.inference.detector import Detector
from lambdanets.inference.figures import draw_detections
from lambdanets.recipes.scattered_digits import recipe as DIGITS
from lambdanets.tasks.detection.augmentation import augment
from lambdanets.tasks.detection.task import make_model_card

HEIGHT, WIDTH, NUM_OBJECTS = 350, 1000, 8_000
MAX_BYTES = 2**30  # all masks together have 2.8 GB
MAX_TIME = 60  # as a multiple of the time to read the annotations, so that it holds on any machine


def square(number, columns, scale):
    x, y, side = 5 * scale * (number % columns), 7 * scale * (number // columns), 4 * scale
    return {
        "id": number + 1,
        "image_id": 1,
        "category_id": 1,
        "bbox": [x, y, side, side],
        "area": side * side,
        "iscrowd": 0,
        "segmentation": [[x, y, x + side, y, x + side, y + side, x, y + side]],
    }


def annotated_squares(height, width, count, columns, scale=1):
    """Return a gray image with `count` annotated squares in a grid with this number of columns.

    The squares have 4 x 4 pixels and distances of 5 and 7 pixels, times `scale`.
    """
    file = io.BytesIO()
    Image.new("L", (width, height), 90).save(file, "PNG")
    content = {
        "images": [{"id": 1, "file_name": "1.png", "height": height, "width": width}],
        "annotations": [square(number, columns, scale) for number in range(count)],
        "categories": [{"id": 1, "name": "square"}],
    }
    annotations = parse_annotations(json.dumps(content).encode(), Path("here"))
    return AnnotatedImages(annotations, InMemoryFiles({"1.png": file.getvalue()}, ["1.png"], "memory"), range(1))


@pytest.fixture(scope="module")
def many_objects_and_seconds():
    start = time.process_time()
    return annotated_squares(HEIGHT, WIDTH, NUM_OBJECTS, columns=200), time.process_time() - start


@pytest.fixture
def many_objects(many_objects_and_seconds):
    return many_objects_and_seconds[0]


def peak_memory():
    """Return the peak memory of the process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


@pytest.fixture
def resource_limits(many_objects_and_seconds):
    """Fail the test if it needs more memory or time than allowed."""
    peak_before, start = peak_memory(), time.process_time()
    yield
    assert time.process_time() - start < MAX_TIME * many_objects_and_seconds[1]
    assert peak_memory() - peak_before < MAX_BYTES


class DetectsTwo(nn.Module):
    """Detects the first two objects."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, images):
        masks = torch.zeros(2, 1, HEIGHT, WIDTH, dtype=torch.bool)
        masks[0, 0, :4, :4] = masks[1, 0, :4, 5:9] = True
        boxes = torch.tensor([[0.0, 0, 4, 4], [5, 0, 9, 4]])
        return [{"boxes": boxes, "labels": torch.ones(2, dtype=torch.int64), "scores": torch.ones(2), "masks": masks}]


@pytest.mark.usefixtures("resource_limits")
def test_evaluation_of_8000_objects_is_bounded_in_memory_and_time(many_objects, tmp_path):
    detector = Detector(DetectsTwo(), make_model_card(DIGITS, ("square",), (1,)))
    evaluation = DetectionEvaluator(detector, many_objects).evaluate()
    draw_detections(detector, many_objects, evaluation, tmp_path)
    assert evaluation.scores.summary()["segm"]["AP"] == pytest.approx(1 / 101)
    with Image.open(tmp_path / "predictions.png") as sheet:
        ground_truth = np.asarray(sheet)[-100:-50, 20:780]  # a region without names
    assert (ground_truth.max(2) != ground_truth.min(2)).mean() > 0.5


def test_max_objects_applies_after_the_crop(many_objects):
    random.seed(0)
    recipe = replace(DIGITS, image_size=300, jitter=(4.0, 4.0), max_objects=150)
    _, target = augment(*many_objects.load(0), recipe)  # the crop is less than a tenth of the image
    assert len(target["masks"]) == 150
