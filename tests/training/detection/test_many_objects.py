"""Images with many objects: neither memory nor time grows with objects times pixels."""

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
from lambdanets.inference.detection import detect_set
from lambdanets.inference.detection_figures import draw_detections
from lambdanets.inference.detector import Detector
from lambdanets.inference.model_card import DetectorCard
from lambdanets.recipes.detection.digits import recipe as DIGITS
from lambdanets.training.detection.loaders import augment

HEIGHT, WIDTH, COUNT = 350, 1000, 8_000
BYTES = 2**30  # all masks at once would take 2.8 GB
MAX_TIME = 60  # in units of the time to read the annotations, on any machine


def square(number, across, scale):
    x, y, side = 5 * scale * (number % across), 7 * scale * (number // across), 4 * scale
    return {
        "id": number + 1,
        "image_id": 1,
        "category_id": 1,
        "bbox": [x, y, side, side],
        "area": side * side,
        "iscrowd": 0,
        "segmentation": [[x, y, x + side, y, x + side, y + side, x, y + side]],
    }


def set_of(height, width, count, across, scale=1):
    """One gray image with `count` squares of 4 x 4 pixels, in columns of 5 and rows of 7 pixels, times `scale`."""
    file = io.BytesIO()
    Image.new("L", (width, height), 90).save(file, "PNG")
    content = {
        "images": [{"id": 1, "file_name": "1.png", "height": height, "width": width}],
        "annotations": [square(number, across, scale) for number in range(count)],
        "categories": [{"id": 1, "name": "square"}],
    }
    annotations = parse_annotations(json.dumps(content).encode(), Path("here"))
    return AnnotatedImages(annotations, InMemoryFiles({"1.png": file.getvalue()}, ["1.png"], "memory"), range(1))


@pytest.fixture(scope="module")
def crowded_and_seconds():
    started = time.process_time()
    return set_of(HEIGHT, WIDTH, COUNT, across=200), time.process_time() - started


@pytest.fixture
def crowded(crowded_and_seconds):
    return crowded_and_seconds[0]


def peak_memory():
    """Of the process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


@pytest.fixture
def bounded(crowded_and_seconds):
    """Fail the test if it takes more memory or time than allowed."""
    before, started = peak_memory(), time.process_time()
    yield
    assert time.process_time() - started < MAX_TIME * crowded_and_seconds[1]
    assert peak_memory() - before < BYTES


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


@pytest.mark.usefixtures("bounded")
def test_evaluation_of_8000_objects_is_bounded_in_memory_and_time(crowded, tmp_path):
    detector = Detector(DetectsTwo(), DetectorCard("lambda_resnet20_small", ("square",), category_ids=(1,)))
    found = detect_set(detector, crowded)
    draw_detections(detector, crowded, found, tmp_path)
    assert found.scores.summary()["segm"]["AP"] == pytest.approx(1 / 101)
    with Image.open(tmp_path / "predictions.png") as sheet:
        truth = np.asarray(sheet)[-100:-50, 20:780]  # without names
    assert (truth.max(2) != truth.min(2)).mean() > 0.5


def test_max_objects_counts_objects_after_the_crop(crowded):
    random.seed(0)
    recipe = replace(DIGITS, image_size=300, jitter=(4.0, 4.0), max_objects=150)
    _, target = augment(*crowded.load(0), recipe)  # the crop is less than a tenth of the image
    assert len(target["masks"]) == 150


@pytest.mark.usefixtures("bounded")
def test_augmenting_300_masks_is_bounded_in_memory_and_time():
    photograph = set_of(3000, 4000, 300, across=30, scale=25)
    _, target = augment(*photograph.load(0), replace(DIGITS, image_size=500, jitter=(1.0, 1.0)))
    assert target["masks"].shape == (300, 375, 500)
