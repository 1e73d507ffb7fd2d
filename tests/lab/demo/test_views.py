"""What the page shows equals what the commands and Python functions return."""

import base64
import csv
import io

import numpy as np
import pytest
from PIL import Image

import lambdanets as ln
from lambdanets.data.pixels import convert_image
from lambdanets.inference.detections import COLUMNS, MIN_SCORE
from lambdanets_lab.demo.examples import example_images
from lambdanets_lab.demo.views import attention_maps, predict_image


@pytest.fixture(scope="module")
def digits():
    return ln.load("digits")


def decode(url):
    return base64.b64decode(url.partition(",")[2])


def test_examples_of_digits_are_classified_as_by_predict(digits):
    for image, caption in example_images(digits):
        summary = predict_image(digits, image, caption).summary
        assert [(bar["name"], bar["value"]) for bar in summary["bars"]] == digits.predict(image)[0].top(5)
        assert summary["headline"].startswith(f"Class {caption.removeprefix('digit ')}, with probability ")


def test_counted_objects_are_those_of_the_table_and_the_label_image():
    detector = ln.load("nuclei")
    unevenly_lit = np.asarray(example_images(detector)[0][0]) * np.linspace(0.1, 1, 256) ** 4
    image = Image.fromarray(unevenly_lit.astype(np.uint8))  # stretching it twice gives other intensities
    summary = predict_image(detector, convert_image(image, stretch=True), "a.png").summary
    expected = detector.predict(image)[0].above(MIN_SCORE)
    labels = np.asarray(Image.open(io.BytesIO(decode(summary["files"]["labels.png"]))))
    header, *table = csv.reader(io.StringIO(decode(summary["files"]["objects.csv"]).decode()))
    assert tuple(header) == COLUMNS
    assert {float(row[3]) for row in table} <= {round(score, 4) for score in expected.scores.tolist()}
    assert 0 < labels.max() == len(table) == len(summary["rows"]) <= len(expected)
    assert summary["headline"].startswith(f"{len(table)} object")


def test_segmented_pixels_are_those_of_predict(trained_segmenter):
    segmenter = ln.load(trained_segmenter / "run")
    image, caption = example_images(segmenter)[0]
    summary = predict_image(segmenter, image, caption).summary
    expected = segmenter.predict(image)[0]
    labels = Image.open(io.BytesIO(decode(summary["files"]["classes.png"])))
    np.testing.assert_array_equal(np.asarray(labels), expected.labels)
    for bar, (name, pixels) in zip(summary["bars"], expected.pixels, strict=True):
        assert (bar["name"], bar["value"]) == (name, pixels / expected.labels.numel())
    assert summary["layers"] == []


def test_maps_have_the_numbers_of_explain(digits):
    prediction = predict_image(digits, *example_images(digits)[0])
    layer = prediction.summary["layers"][0]["name"]
    texts = attention_maps(prediction, layer, 1, (3, 5))["texts"]
    explanation = ln.explain(digits, prediction.image)
    attention = explanation.attention_map(layer, (3, 5))
    assert texts["largest-content"] == f"{attention.content[1].abs().max():.2g}"
    assert texts["largest-position"] == f"{attention.position[1].abs().max():.2g}"
    assert texts["position"] == f"{round(100 * float(explanation.position_share(layer)[attention.at]))}%"
