"""Several threads that use one trained model at the same time."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import lambdanets as ln
from lambdanets.adoption.trial import randomize
from lambdanets.inference.classifier import Classifier
from lambdanets.inference.detector import Detector
from lambdanets.inference.model_card import ClassifierCard, DetectorCard, SegmenterCard, make_card
from lambdanets.inference.segmenter import Segmenter
from lambdanets.recipes.digit_masks import recipe as MASKS
from lambdanets.recipes.digits import recipe as DIGITS
from lambdanets.recipes.scattered_digits import recipe as OBJECTS

BACKBONE = {"scope": 7, "layers": [1, 1, 1, 1], "lambda_blocks": [[], [], [1], [1]]}
BATCHES = [[(20, 48), (48, 20)], [(48, 30), (30, 30), (30, 48)], [(48, 48)], [(33, 48), (48, 47)]]


def make_classifier() -> Classifier:
    card = make_card(ClassifierCard, replace(DIGITS, image_size=32, channels=3, model_options=BACKBONE), ("a", "b"))
    return Classifier(ln.create_model(card.model, num_classes=2, **BACKBONE).eval(), card)


def make_detector() -> Detector:
    sizes: dict[str, Any] = {"image_size": 48, "levels": (2, 3), "pyramid_channels": 8, "box_layers": (0, 16)}
    sizes |= {"mask_layers": 0, "proposals": 10, "max_detections": 3}
    recipe = replace(OBJECTS, model="lambda_resnet20_small", model_options=BACKBONE, **sizes)
    card = make_card(DetectorCard, recipe, ("a",), category_ids=(1,))
    model = Detector.build(card, 1)
    model.roi_heads.score_thresh = 0.0
    randomize(model.backbone)
    nn.init.normal_(model.rpn.head.cls_logits.weight, std=0.5)
    return Detector(model.float().eval(), card)


def make_segmenter() -> Segmenter:
    options = {"widths": [4, 8], "lambda_stages": 1}
    recipe = replace(MASKS, model="lambda_unet_small", model_options=options)
    card = make_card(SegmenterCard, recipe, ("a",), category_ids=(1,))
    return Segmenter(ln.create_model(card.model, num_classes=2, **card.model_options).eval(), card)


def result(prediction: Any) -> list[bytes]:
    """Return what a prediction consists of, as comparable values."""
    names = ("probabilities", "boxes", "scores", "labels", "masks")
    return [getattr(prediction, name).numpy().tobytes() for name in names if hasattr(prediction, name)]


@pytest.mark.parametrize("make", [make_classifier, make_detector, make_segmenter])
def test_eight_threads_get_the_results_of_one(make: Callable[[], Any]) -> None:
    torch.manual_seed(0)
    model = make()
    random = np.random.default_rng(0)
    batches = [
        [Image.fromarray(random.integers(0, 256, (*size, 3), dtype=np.uint8)) for size in sizes] for sizes in BATCHES
    ]

    def predict(index: int) -> list[list[bytes]]:
        batch = batches[index % len(batches)]
        return [result(each) for each in model.predict(batch, batch_size=len(batch))]

    expected = [predict(index) for index in range(len(batches))]
    assert expected[0][0] != expected[0][1]
    with ThreadPoolExecutor(8) as pool:
        for index, actual in enumerate(pool.map(predict, range(32))):
            assert actual == expected[index % len(batches)]
