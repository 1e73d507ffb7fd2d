"""U-Nets: shapes at any size, gradients, positions of lambda layers, invalid arguments, export, torch.compile."""

import pickle

import pytest
import torch
import torch.nn.functional as F

from all_pairs import in_turn
from lambdanets import LambdaLayer2d, create_model

NAMES = ("lambda_unet_small", "unet_small")
parametrize_names = pytest.mark.parametrize("name", NAMES)


def create_narrow(name, **options):
    torch.manual_seed(0)
    narrow = {"num_classes": 3, "widths": (4, 8, 8), "scope": 5, "query_depth": 4, "heads": 2}
    return create_model(name, **narrow | options)


@pytest.mark.parametrize(("size", "name"), in_turn([(1, 1), (3, 50), (16, 16), (17, 33), (31, 9)], NAMES))
def test_logits_have_the_height_and_width_of_the_input(name, size):
    model = create_model(name, num_classes=3, in_chans=1).eval()
    with torch.no_grad():
        assert model(torch.randn(2, 1, *size)).shape == (2, 3, *size)


@parametrize_names
def test_padding_the_input_to_the_stride_keeps_the_output(name):
    model = create_narrow(name).eval()
    x = torch.randn(2, 3, 21, 14)
    padded = F.pad(x, (0, 2, 0, 3), mode="replicate")  # to multiples of 4, the total stride
    with torch.no_grad():
        torch.testing.assert_close(model(x), model(padded)[..., :21, :14])


@parametrize_names
def test_every_parameter_of_a_unet_has_a_gradient(name):
    model = create_narrow(name).train()
    model(torch.randn(2, 3, 18, 13)).square().mean().backward()
    assert not [key for key, p in model.named_parameters() if p.grad is None or not p.grad.any()]


def test_lambda_layers_are_in_the_lowest_stages_of_encoder_and_decoder():
    model = create_model("lambda_unet_small", scope=7, heads=8, query_depth=8)
    layers = {name: module for name, module in model.named_modules() if isinstance(module, LambdaLayer2d)}
    expected_names = (*(f"encoder.{level}.conv2" for level in (2, 3, 4)), "decoder.0.conv2", "decoder.1.conv2")
    assert set(layers) == set(expected_names)
    assert {(layer.embedding.scope, layer.heads, layer.query_depth) for layer in layers.values()} == {((7, 7), 8, 8)}
    assert not [module for module in create_model("unet_small").modules() if isinstance(module, LambdaLayer2d)]


def test_classifier_of_a_unet_can_be_replaced_and_removed():
    model = create_narrow("lambda_unet_small").eval()
    x = torch.randn(1, 3, 10, 8)
    assert model.get_classifier() is model.head
    model.reset_classifier(5)
    assert (model.num_classes, model(x).shape) == (5, (1, 5, 10, 8))
    model.reset_classifier(0)
    assert model(x).shape == (1, 4, 10, 8)
    assert create_narrow("unet_small", num_classes=0)(x).shape == (1, 4, 10, 8)
    assert create_narrow("unet_small", num_classes=None).num_classes == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"widths": (8,)}, r"widths must be two or more positive numbers, got \(8,\)"),
        ({"widths": (8, 0)}, r"widths must be two or more positive numbers, got \(8, 0\)"),
        ({"lambda_stages": 6}, "lambda_stages must be from 0 to 5, got 6"),
        ({"heads": 3}, "heads"),
    ],
)
def test_rejects_invalid_arguments_of_a_unet(options, message):
    with pytest.raises(ValueError, match=message):
        create_model("lambda_unet_small", **options)


def test_compiled_and_exported_unets_have_the_same_logits_at_odd_sizes():
    model = create_narrow("lambda_unet_small", widths=(4, 8), lambda_stages=1).double().eval()
    x = torch.randn(1, 3, 21, 34, dtype=torch.float64)
    with torch.no_grad():
        expected = model(x)
        for graph in (torch.compile(model, backend="eager", fullgraph=True), torch.export.export(model, (x,)).module()):
            torch.testing.assert_close(graph(x), expected)


@parametrize_names
def test_features_only_returns_the_maps_of_the_encoder(name):
    model = create_narrow(name).eval()
    features = create_narrow(name, features_only=True, out_indices=(0, 1, 2)).eval()
    features.load_state_dict({key: model.state_dict()[key.partition(".")[2]] for key in features.state_dict()})
    x, maps = torch.randn(2, 3, 9, 14), []
    for block in model.encoder:
        block.register_forward_hook(lambda block, inputs, output: maps.append(output))
    model(x)
    for actual, expected in zip(pickle.loads(pickle.dumps(features))(x), maps, strict=True):
        assert torch.equal(actual, expected)
    assert (features.feature_info.channels(), features.feature_info.reduction()) == ([4, 8, 8], [1, 2, 4])
