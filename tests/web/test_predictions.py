"""What the page shows, without gradio and without a browser."""

import csv
import dataclasses
import io

import numpy as np
import pytest
import torch
from PIL import Image

import lambdanets as ln
from lambdanets.errors import InputError
from lambdanets.inference.label_images import COLUMNS
from lambdanets.web import predictions, texts
from lambdanets.web.attention import attention_maps, clicked_pixel, default_layer, marked, num_heads, shown_size
from lambdanets.web.examples import draw_nuclei, example_images
from lambdanets.web.planning import LayerShape, plan_layer
from lambdanets.web.predictions import predict_image


@pytest.fixture(scope="module")
def digits():
    return ln.load("digits")


@pytest.fixture(scope="module")
def prediction(digits):
    image, caption = example_images(digits)[0]
    return predict_image(digits, image, caption)


@pytest.fixture(scope="module")
def detector(trained_detector):
    return ln.load(trained_detector / "run")


def test_examples_of_digits_are_classified(digits):
    for image, caption in example_images(digits):
        prediction = predict_image(digits, image, caption)
        assert caption == f"digit {prediction.top[0][0]}"
        assert f"Class <b>{prediction.top[0][0]}</b>" in texts.prediction_html(prediction)


def test_classes_equal_those_of_predict(digits, prediction):
    assert prediction.top == digits.predict(prediction.image)[0].top(5)
    assert prediction.layers == ln.explain(digits, prediction.image).layers


def test_objects_and_files_equal_those_of_detect_predict(detector):
    image, caption = example_images(detector)[0]
    prediction = predict_image(detector, image, caption)
    expected = detector.predict(image)[0].above(predictions.MIN_SCORE)
    rows = prediction.objects.rows
    assert 0 < len(rows) <= len(expected)  # without objects that others hide
    assert {row["score"] for row in rows} <= set(expected.scores.tolist())
    labels = np.asarray(Image.open(io.BytesIO(prediction.objects.files["labels.png"])))
    assert labels.dtype == np.uint16
    assert labels.shape == (image.height, image.width)
    assert set(np.unique(labels)) == set(range(len(rows) + 1))
    table = list(csv.reader(io.StringIO(prediction.objects.files["objects.csv"].decode())))
    assert tuple(table[0]) == COLUMNS
    assert len(table) == len(rows) + 1
    assert Image.open(io.BytesIO(prediction.objects.files["overlay.png"])).size == prediction.objects.overlay.size
    html = texts.prediction_html(prediction)
    assert f"<b>{len(rows)}</b> object" in html
    assert html.count("<a download=") == 3


def test_large_image_is_rejected_if_the_model_divides_it(detector, monkeypatch):
    monkeypatch.setattr(predictions, "is_tiled", lambda *_: True)
    object.__setattr__(detector.card, "tile_size", 64)
    try:
        with pytest.raises(InputError, match="the image must have at most 1,000,000 pixels for this model"):
            predict_image(detector, Image.new("L", (1200, 900)), "large")
    finally:
        object.__setattr__(detector.card, "tile_size", None)


def test_place_shows_the_numbers_of_explain(digits, prediction):
    layer = default_layer(prediction)
    maps = attention_maps(prediction, layer, 1, (3, 5))
    explanation = ln.explain(digits, prediction.image)
    attention = explanation.attention_map(layer, (3, 5))
    torch.testing.assert_close(maps.largest_content, float(attention.content[1].abs().max()))
    torch.testing.assert_close(maps.largest_position, float(attention.position[1].abs().max()))
    assert maps.limit == max(maps.largest_content, maps.largest_position)
    share = explanation.position_share(layer)
    assert maps.share == pytest.approx(float(share[attention.at]))
    assert maps.area == explanation.receptive_field(layer, (3, 5)).area()


def test_text_names_the_window_of_the_position_weights(prediction):
    maps = attention_maps(prediction, default_layer(prediction), 0, (2, 2))
    assert maps.window is None  # a scope of 23 covers maps of 4 x 4 from every place
    assert "one over all places with position weights" in texts.maps_html(prediction, maps)
    narrow = dataclasses.replace(maps, window=(5, 3))
    assert "one over a window of 5 x 3 places around it with position weights" in texts.maps_html(prediction, narrow)


def test_maps_differ_between_heads_and_places(prediction):
    layer = default_layer(prediction)
    maps = [
        attention_maps(prediction, layer, *place).position.tobytes()
        for place in ((0, (1, 1)), (1, (1, 1)), (0, (6, 6)))
    ]
    assert len(set(maps)) == 3


def test_content_and_position_have_one_scale(prediction):
    maps = attention_maps(prediction, default_layer(prediction), 0, (2, 2))
    html = texts.maps_html(prediction, maps)
    assert html.count(f"-{maps.limit:.2g}<") == html.count(f"+{maps.limit:.2g}<") == 2
    share = round(100 * maps.share)
    assert f"<b>{share}%</b> of the output comes from position" in html


@pytest.mark.parametrize(
    ("layer", "head", "at", "message"),
    [
        ("nothing", 0, (0, 0), "layer must be one of"),
        (None, 99, (0, 0), "head must be an integer, at least 0 and at most"),
        (None, 0, (8, 0), "at must be a pixel of the image"),
    ],
)
def test_invalid_place_is_rejected(prediction, layer, head, at, message):
    with pytest.raises(InputError, match=message):
        attention_maps(prediction, layer or default_layer(prediction), head, at)


def test_every_layer_and_head_can_be_shown(prediction):
    calls = prediction.explanation.calls
    for layer in prediction.layers:
        for head in range(num_heads(prediction, layer)):
            assert attention_maps(prediction, layer, head, (0, 7)).sides == calls[layer].inputs.grid


def test_model_without_lambda_layers_has_no_maps(digits):
    network = ln.create_model("resnet20_mixer_small", num_classes=10, in_chans=1, mixer="convolution").eval()
    prediction = predict_image(dataclasses.replace(digits, model=network), Image.new("L", (8, 8)), "black")
    assert len(prediction.top) == 5
    assert prediction.layers == ()


@pytest.mark.parametrize("size", [(8, 8), (1, 1), (1500, 3), (700, 900)])
def test_clicked_pixel_inverts_the_shown_size(size):
    image = Image.new("L", size)
    width, height = shown_size(image)
    assert marked(image, (image.height - 1, 0)).size == (width, height)
    assert clicked_pixel(image, 0, 0) == (0, 0)
    assert clicked_pixel(image, width - 0.01, height - 0.01) == (image.height - 1, image.width - 1)
    assert clicked_pixel(image, 5000, -3) == (0, image.width - 1)


def test_drawn_nuclei_are_separate_and_counted():
    image, caption = draw_nuclei(8, seed=0)
    assert caption == "8 blobs"
    assert image.size == (256, 256)
    assert image.getextrema()[1] > 60


def test_names_are_escaped(prediction):
    html = texts.prediction_html(dataclasses.replace(prediction, name="<script>", top=[("<b>", 1.0)]))
    assert "<script>" not in html
    assert "<b><b>" not in html


def test_plan_equals_that_of_the_operation():
    plan = plan_layer(LayerShape(batch=2, dim=64, height=28, width=20, scope=7))
    tensors = [torch.empty(sides, device="meta") for sides in ((2, 4, 560, 16), (7, 7, 16), (2, 560, 16))]
    assert str(plan) == str(ln.plan(*tensors, (28, 20)))
    html = texts.plan_html(plan)
    assert f"Chosen algorithm: <b>{plan.chosen}</b>" in html
    assert all(name in html for name in plan.costs)


def test_scope_0_covers_the_whole_map():
    whole, explicit = (plan_layer(LayerShape(height=16, width=16, scope=scope)) for scope in (0, 31))
    assert whole.costs == explicit.costs


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scope": 4}, "scope must be odd, or 0 for the whole map, got 4"),
        ({"heads": 3}, "dim must be divisible by heads, got 64 and 3"),
        ({"height": 0}, "height must be an integer, at least 1 and at most 4,096, got 0"),
        ({"batch": None}, "batch must be an integer"),
    ],
)
def test_invalid_shape_is_rejected(options, message):
    with pytest.raises(InputError, match=message):
        LayerShape(**options)


def test_window_of_a_strided_layer_is_in_places_of_its_input(digits):
    network = ln.create_model("lambda_resnet20_small", num_classes=10, in_chans=1, scope=15).eval()
    prediction = predict_image(dataclasses.replace(digits, model=network), Image.new("L", (32, 32)), "black")
    calls = prediction.explanation.calls
    layer = next(name for name in prediction.layers if calls[name].layer.stride == 2)
    maps = attention_maps(prediction, layer, 0, (7, 7))
    assert maps.sides == calls[layer].inputs.grid == tuple(2 * side for side in calls[layer].sides)
    assert (maps.window is None) == (2 * maps.sides[0] - 1 <= 15)
