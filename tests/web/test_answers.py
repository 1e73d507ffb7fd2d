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
from lambdanets.web import answers, texts
from lambdanets.web.answers import answer
from lambdanets.web.examples import draw_nuclei, example_images
from lambdanets.web.places import clicked_pixel, default_layer, heads, look, marked, shown_size
from lambdanets.web.planning import LayerShape, plan_layer


@pytest.fixture(scope="module")
def digits():
    return ln.load("digits")


@pytest.fixture(scope="module")
def found(digits):
    image, caption = example_images(digits)[0]
    return answer(digits, image, caption)


@pytest.fixture(scope="module")
def detector(trained_detector):
    return ln.load(trained_detector / "run")


def test_examples_of_digits_are_classified(digits):
    for image, caption in example_images(digits):
        found = answer(digits, image, caption)
        assert caption == f"digit {found.top[0][0]}"
        assert f"Class <b>{found.top[0][0]}</b>" in texts.answer_html(found)


def test_answer_equals_the_prediction_of_the_model(digits, found):
    assert found.top == digits.predict(found.image)[0].top(5)
    assert found.layers == ln.explain(digits, found.image).layers


def test_objects_and_files_equal_those_of_detect_predict(detector):
    image, caption = example_images(detector)[0]
    found = answer(detector, image, caption)
    expected = detector.predict(image)[0].above(answers.MIN_SCORE)
    rows = found.objects.rows
    assert 0 < len(rows) <= len(expected)  # without objects that others hide
    assert {row["score"] for row in rows} <= set(expected.scores.tolist())
    labels = np.asarray(Image.open(io.BytesIO(found.objects.files["labels.png"])))
    assert labels.dtype == np.uint16
    assert labels.shape == (image.height, image.width)
    assert set(np.unique(labels)) == set(range(len(rows) + 1))
    table = list(csv.reader(io.StringIO(found.objects.files["objects.csv"].decode())))
    assert tuple(table[0]) == COLUMNS
    assert len(table) == len(rows) + 1
    assert Image.open(io.BytesIO(found.objects.files["overlay.png"])).size == found.objects.overlay.size
    html = texts.answer_html(found)
    assert f"<b>{len(rows)}</b> object" in html
    assert html.count("<a download=") == 3


def test_large_image_is_rejected_if_the_model_divides_it(detector, monkeypatch):
    monkeypatch.setattr(answers, "is_tiled", lambda *_: True)
    object.__setattr__(detector.card, "tile_size", 64)
    try:
        with pytest.raises(InputError, match="the image must have at most 1,000,000 pixels for this model"):
            answer(detector, Image.new("L", (1200, 900)), "large")
    finally:
        object.__setattr__(detector.card, "tile_size", None)


def test_place_shows_the_numbers_of_explain(digits, found):
    layer = default_layer(found)
    place = look(found, layer, 1, (3, 5))
    explanation = ln.explain(digits, found.image)
    attention = explanation.attention_map(layer, (3, 5))
    torch.testing.assert_close(place.largest_content, float(attention.content[1].abs().max()))
    torch.testing.assert_close(place.largest_position, float(attention.position[1].abs().max()))
    assert place.limit == max(place.largest_content, place.largest_position)
    share = explanation.position_share(layer)
    assert place.share == pytest.approx(float(share[attention.at]))
    assert place.area == explanation.receptive_field(layer, (3, 5)).area()


def test_maps_differ_between_heads_and_places(found):
    layer = default_layer(found)
    maps = [look(found, layer, *place).position.tobytes() for place in ((0, (1, 1)), (1, (1, 1)), (0, (6, 6)))]
    assert len(set(maps)) == 3


def test_content_and_position_have_one_scale(found):
    place = look(found, default_layer(found), 0, (2, 2))
    html = texts.place_html(found, place)
    assert html.count(f"-{place.limit:.2g}<") == html.count(f"+{place.limit:.2g}<") == 2
    share = round(100 * place.share)
    assert f"<b>{share}%</b> of the output comes from position" in html


@pytest.mark.parametrize(
    ("layer", "head", "at", "message"),
    [
        ("nothing", 0, (0, 0), "layer must be one of"),
        (None, 99, (0, 0), "head must be an integer, at least 0 and at most"),
        (None, 0, (8, 0), "at must be a pixel of the image"),
    ],
)
def test_invalid_place_is_rejected(found, layer, head, at, message):
    with pytest.raises(InputError, match=message):
        look(found, layer or default_layer(found), head, at)


def test_every_layer_and_head_can_be_shown(found):
    for layer in found.layers:
        for head in range(heads(found, layer)):
            assert look(found, layer, head, (0, 7)).sides == found.explanation.calls[layer].sides


def test_model_without_lambda_layers_is_answered_without_maps(digits):
    network = ln.create_model("resnet20_mixer_small", num_classes=10, in_chans=1, mixer="convolution").eval()
    found = answer(dataclasses.replace(digits, model=network), Image.new("L", (8, 8)), "black")
    assert len(found.top) == 5
    assert found.layers == ()


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


def test_names_are_escaped(found):
    html = texts.answer_html(dataclasses.replace(found, name="<script>", top=[("<b>", 1.0)]))
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
