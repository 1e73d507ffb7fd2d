"""Several threads that use one trained model at the same time."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import lambdanets as ln
from lambdanets.data.transforms import Preprocessing
from lambdanets.inference.classifier import Classifier
from lambdanets.inference.detector import Detector, build_detector
from lambdanets.inference.model_card import ClassifierCard, DetectorCard, SegmenterCard
from lambdanets.inference.segmenter import Segmenter
from lambdanets.models.padding_check import simulate_trained_weights

BACKBONE = {"scope": 7, "layers": (1, 1, 1, 1), "lambda_blocks": ((), (), (1,), (1,))}
BATCHES = [[(20, 48), (48, 20)], [(48, 30), (30, 30), (30, 48)], [(48, 48)], [(33, 48), (48, 47)]]


def make_classifier() -> Classifier:
    card = ClassifierCard(
        "lambda_resnet20_small", ("a", "b"), BACKBONE, preprocessing=Preprocessing(image_size=32, channels=3)
    )
    return Classifier(ln.create_model(card.model, num_classes=2, **BACKBONE).eval(), card)


def make_detector() -> Detector:
    sizes: dict[str, Any] = {"image_size": 48, "levels": (2, 3), "pyramid_channels": 8, "box_layers": (0, 16)}
    sizes |= {"mask_layers": 0, "proposals": 10, "max_detections": 3}
    card = DetectorCard("lambda_resnet20_small", ("a",), BACKBONE, category_ids=(1,), **sizes)
    model = build_detector(card, box_score_thresh=0.0)
    simulate_trained_weights(model.backbone)
    nn.init.normal_(model.rpn.head.cls_logits.weight, std=0.5)
    return Detector(model.float().eval(), card)


def make_segmenter() -> Segmenter:
    card = SegmenterCard("lambda_unet_small", ("a",), {"widths": (4, 8), "lambda_stages": 1}, category_ids=(1,))
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
        for index, actual in enumerate(pool.map(predict, range(200))):
            assert actual == expected[index % len(batches)]
