"""Explanations of classifiers, detectors and networks, in Python and by the command."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import lambdanets as ln
from lambdanets.cli import main
from lambdanets.errors import InputError
from lambdanets.files import is_output
from lambdanets_lab.explain.view import View
from training.detection.constructed_detector import write_constructed_detector


def assert_maps_reproduce_layers(explanation, at, rtol=1e-4):
    for name, call in explanation.calls.items():
        attention = explanation.attention_map(name, at)
        expected = call.output[(0, slice(None), *attention.at)]
        torch.testing.assert_close(attention.output(), expected, rtol=rtol, atol=rtol * float(expected.abs().max()))


def test_attention_maps_of_a_classifier(quick_run):
    classifier = ln.load(quick_run, device="cpu")
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 50), np.uint8))
    explanation = ln.explain(classifier, image)
    assert_maps_reproduce_layers(explanation, (20, 22))
    probabilities = classifier.predict(image)[0].probabilities
    torch.testing.assert_close(explanation.output[0].softmax(0), probabilities)
    last = explanation.layers[-1]
    attention = ln.attention_map(classifier, image, at=(0, 49 - 10))
    assert attention.layer == last
    torch.testing.assert_close(attention.total, explanation.attention_map(last, (0, 39)).total)
    rows, columns = explanation.calls[last].sides
    assert attention.at == (0, columns - 1)  # the center crop has the columns 10 to 39
    assert explanation.attention_map(last).at == (rows // 2, columns // 2)
    colors = np.random.default_rng(1).integers(0, 256, (30, 50, 3), np.uint8)
    green, same = ln.explain(classifier, colors, channel=1), ln.explain(classifier, colors[..., 1])
    assert green.output.equal(same.output)
    half = ln.Classifier(classifier.model.bfloat16(), classifier.card)
    assert ln.explain(half, image).receptive_field().gradient.any()


def test_positions_outside_of_the_crop_or_the_image_are_errors(quick_run):
    explanation = ln.explain(quick_run, np.zeros((30, 50), np.uint8))
    with pytest.raises(InputError, match=r"at must be in the center crop .*, rows 0 to 29 and columns 10 to 39"):
        explanation.attention_map(at=(3, 40))
    for at in [(30, 20), (-1, 20), (3,), 3]:
        with pytest.raises(InputError, match=r"at must be a pixel of the image of size \(30, 50\), got"):
            explanation.attention_map(at=at)
    with pytest.raises(InputError, match=r"layer must be one of .*; the nearest is "):
        explanation.attention_map(explanation.layers[-1] + "x")


def test_maps_of_a_detector_with_padding(tmp_path):
    write_constructed_detector(tmp_path)
    detector = ln.load(tmp_path / "initial.safetensors", device="cpu")
    image = torch.rand(3, 70, 90, generator=torch.Generator().manual_seed(0))
    explanation = ln.explain(detector, image)
    assert explanation.view.size[0] > 70 or explanation.view.size[1] > 90
    assert_maps_reproduce_layers(explanation, (69, 89))
    field = explanation.receptive_field(at=(10, 20))
    assert field.gradient.shape == (70, 90)
    assert field.gradient.any()
    assert field.view == View((70, 90), (0.0, 0.0), (70.0, 90.0))  # unlike the maps, without padding


def test_first_example_of_a_batch_is_explained_and_modes_are_restored():
    torch.manual_seed(0)
    network = ln.create_model("lambda_resnet20_small", num_classes=3, zero_init_last=False).train()
    network.layer1.eval()
    images = torch.randn(2, 3, 33, 48)
    explanation = ln.explain(network, images)
    assert network.training
    assert not network.layer1.training
    assert_maps_reproduce_layers(explanation, (32, 47))
    alone = ln.explain(network, images[:1])
    torch.testing.assert_close(explanation.position_share(), alone.position_share(), rtol=1e-4, atol=1e-4)
    field, expected = explanation.receptive_field(at=(5, 6)), alone.receptive_field(at=(5, 6))
    atol = 1e-4 * float(expected.gradient.max())
    torch.testing.assert_close(field.gradient, expected.gradient, rtol=1e-3, atol=atol)


@pytest.mark.parametrize(
    "options", [{"stride": 2}, {"causal": True, "multi_head": True}, {"content": False}, {"position": False}]
)
def test_position_share_is_that_of_the_attention_maps(options):
    torch.manual_seed(0)
    layer = ln.LambdaLayer2d(8, scope=3, **options).double().eval()
    mask = torch.ones(1, 5, 6, dtype=torch.bool)
    mask[0, 4] = False
    explanation = ln.explain(layer, (torch.randn(1, 8, 5, 6, dtype=torch.float64), mask))
    assert explanation.layers == ("LambdaLayer2d",)
    shares = explanation.position_share()
    rows, columns = explanation.calls["LambdaLayer2d"].sides
    assert shares.shape == (rows, columns)
    for row, column in np.ndindex(rows, columns):
        at = (-(-row * 5 // rows), -(-column * 6 // columns))  # the first pixel of the position
        attention = explanation.attention_map(at=at)
        assert attention.at == (row, column)
        zero = torch.zeros_like(attention.content)
        content = type(attention)("", at, attention.content, zero, attention.bias, attention.values).output().norm()
        position = type(attention)("", at, zero, attention.position, attention.bias, attention.values).output().norm()
        expected = position / (content + position) if content + position else content
        torch.testing.assert_close(shares[row, column].double(), expected, rtol=1e-5, atol=1e-6)


def test_receptive_field_is_the_gradient_and_its_box():
    torch.manual_seed(0)
    position_only = ln.LambdaLayer2d(4, scope=(5, 3), content=False)
    network = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), position_only, nn.Conv2d(4, 4, 3, padding=1)).eval()
    images = torch.randn(1, 3, 15, 16)
    field = ln.explain(network, images).receptive_field("2", at=(7, 8))
    assert field.box == ((3, 12), (5, 12))
    network_input = images.clone().requires_grad_()
    network(network_input)[0, :, 7, 8].sum().backward()
    torch.testing.assert_close(field.gradient, network_input.grad[0].abs().sum(0))
    assert 0 < field.area(0.5) < field.area(0.99) <= 9 * 7 / (15 * 16)
    with_content = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), ln.LambdaLayer2d(4, scope=3)).eval()
    assert ln.explain(with_content, images).receptive_field(at=(7, 8)).box == ((0, 15), (0, 16))


def test_at_is_a_position_of_the_layer_for_tokens_and_sequences():
    torch.manual_seed(0)
    tokens = nn.Sequential(nn.Linear(5, 8), ln.LambdaLayer(8, embedding=ln.RelativeEmbedding((5,), 16))).eval()
    explanation = ln.explain(tokens, torch.randn(2, 7, 5))
    attention = explanation.attention_map(at=6)
    torch.testing.assert_close(attention.output(), explanation.calls["1"].output[0, 6])
    assert explanation.position_share().shape == (7,)
    assert explanation.keys().shape == (7, 16)
    assert explanation.receptive_field(at=3).gradient.shape == (7,)
    assert explanation.receptive_field("0", at=3).box == ((3, 4),)
    sequence = ln.LambdaLayer1d(8, scope=3, stride=2).eval()
    explanation = ln.explain(sequence, torch.randn(1, 8, 9))
    assert explanation.receptive_field(at=4).gradient.shape == (9,)
    with pytest.raises(InputError, match=r"at must be a position of the layer's output of size \(5,\), got \(5,\)"):
        explanation.attention_map(at=5)


def test_rejects_models_without_lambda_layers_and_other_modules():
    with pytest.raises(InputError, match="model must have lambda layers, got Conv2d"):
        ln.explain(nn.Conv2d(3, 3, 1), torch.zeros(1, 3, 4, 4))
    with pytest.raises(InputError, match="name of a module"):
        ln.explain(ln.LambdaLayer2d(4, scope=3), torch.zeros(1, 4, 5, 5)).receptive_field("layer9")


FILES = ["attention.png", "keys.png", "receptive_field.png", "shares.png"]


@pytest.mark.figures
def test_command_writes_figures_and_prints_shares(quick_run, tmp_path, capsys):
    from lambdanets_lab.explain.figures import draw_panels

    image, out = tmp_path / "image.png", tmp_path / "out"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 50, 3), np.uint8)).save(image)
    assert main(["explain", str(quick_run), str(image), "--at", "3", "12", "--out", str(out)]) == 0
    assert sorted(path.name for path in out.iterdir() if path.name != ".lock") == FILES
    assert is_output({*FILES})
    for path in out.glob("*.png"):
        with Image.open(path) as figure:
            assert min(figure.size) > 200
            assert len(np.unique(np.asarray(figure.convert("L")))) > 50
    for name, low in (("negative", -1.0), ("zero", 0.0)):  # keys that are not from a softmax
        draw_panels({"key": np.array([[low, 1.0]])}, "", View.whole((30, 50)), Image.open(image), tmp_path / name)
    assert (tmp_path / "negative").read_bytes() != (tmp_path / "zero").read_bytes()
    output = capsys.readouterr().out
    assert all(name in output for name in (*ln.explain(quick_run, image).layers, "position share", *FILES))


def test_a_segmenter_is_explained_in_python_and_by_the_command(trained_segmenter, tmp_path):
    run, path = trained_segmenter / "run", tmp_path / "a.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 50, 3), np.uint8)).save(path)
    explanation = ln.explain(run, path)
    assert_maps_reproduce_layers(explanation, (20, 22))
    probabilities = ln.load(run, device="cpu").predict(path)[0].probabilities
    torch.testing.assert_close(explanation.output[0].softmax(0), probabilities)
    assert main(["explain", str(run), str(path), "--at", "29", "49", "--out", str(tmp_path / "out")]) == 0


def test_positions_of_a_unet_are_those_of_its_padded_input():
    network = ln.create_model("lambda_unet_small", widths=[4, 8, 8, 8, 8], scope=3, algorithm="query_order")
    explanation = ln.explain(network, torch.rand(1, 3, 50, 70))
    assert explanation.receptive_field("head", at=(40, 60)).at == (40, 60)
    for layer in explanation.layers:
        stride = 64 // explanation.calls[layer].sides[0]
        assert explanation.attention_map(layer, at=(40, 60)).at == (40 // stride, 60 // stride)


def test_a_compiled_network_is_explained():
    network = ln.create_model("lambda_resnet20_small")
    compiled, image = torch.compile(network, backend="eager"), torch.rand(1, 3, 16, 16)
    expected = ln.explain(network, image).attention_map().total
    torch.testing.assert_close(ln.explain(compiled, image).attention_map().total, expected)
