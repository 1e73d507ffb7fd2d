"""Images with many objects: memory is not proportional to objects times pixels."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from data.coco import coco_files
from lambdanets.data.coco.annotations import read_annotations
from lambdanets.inference.detector import Detector
from lambdanets.inference.model_card import DetectorCard, make_card
from lambdanets.recipes.scattered_digits import recipe as DIGITS
from lambdanets.tasks.detection import augment
from memory import at_most

HEIGHT, WIDTH, NUM_OBJECTS = 350, 1000, 8_000
MAX_BYTES = 2**30  # all masks together have 2.8 GB


def square(number):
    x, y = 5 * (number % 200), 7 * (number // 200)
    return coco_files.rectangle(number + 1, x, y, x + 4, y + 4)


@pytest.fixture(scope="module")
def many_objects(tmp_path_factory):
    """A gray image with annotated squares of 4 x 4 pixels in a grid."""
    image = Image.new("L", (WIDTH, HEIGHT), 90)
    images = [coco_files.image(1, height=HEIGHT, width=WIDTH)]
    content = coco_files.content(*map(square, range(NUM_OBJECTS)), images=images)
    content["categories"] = [{"id": 7, "name": "square"}]  # of one class, only outlines are drawn
    annotations = read_annotations(coco_files.write(tmp_path_factory.mktemp("many") / "a.json", content))
    return replace(annotations, images=(replace(annotations.images[0], file=image),))


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


@pytest.mark.figures
def test_memory_of_an_evaluation_of_8000_objects_is_bounded(many_objects, tmp_path):
    detector = Detector(DetectsTwo(), make_card(DetectorCard, DIGITS, ("square",), category_ids=(7,)), many_objects)
    with at_most(MAX_BYTES):
        evaluation = detector.evaluate()
        detector.draw(evaluation, tmp_path)
    assert evaluation.scores["segm"]["AP"] == pytest.approx(1 / 101)
    with Image.open(tmp_path / "predictions.png") as sheet:
        ground_truth = np.asarray(sheet)[100:200, 20:740, :3]
    assert (ground_truth.max(2) != ground_truth.min(2)).mean() > 0.5


def test_max_objects_applies_after_the_crop(many_objects):
    random.seed(0)
    recipe = replace(DIGITS, image_size=300, jitter=(4.0, 4.0), max_objects=150)
    _, target = augment(*many_objects.load(0), recipe)  # the crop is less than a tenth of the image
    assert len(target["masks"]) == 150
