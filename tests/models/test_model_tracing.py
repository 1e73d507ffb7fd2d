"""Whole models under torch.fx, torchvision's feature extraction, torch.jit.trace and TensorBoard."""

import pytest
import timm
import torch
from torch import fx
from torchvision.models.feature_extraction import create_feature_extractor, get_graph_node_names

from all_pairs import in_turn
from lambdanets.layers.module import Layer

# PyTorch warns at every call that tracing and scripting are deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning", "ignore::torch.jit.TracerWarning")

MODELS = {
    "lambda_resnet20_small": {},
    "resnet20_mixer_small": {"mixer": "local_attention", "scope": 3},
    "mobilenetv2_lambda": {},
}
parametrize_models = pytest.mark.parametrize("name", MODELS)
parametrize_models_in_turn = pytest.mark.parametrize(("name", "training"), in_turn(MODELS, (True, False)))


def create_model_and_images(name, **options):
    torch.manual_seed(0)
    # float64, because batch norm over only two values amplifies rounding errors
    model = timm.create_model(name, num_classes=5, **MODELS[name], **options).double()
    return model, torch.randn(2, 3, 32, 32, dtype=torch.float64)


def output_and_gradients(model, x):
    output = model(x)
    return output, torch.autograd.grad(output.square().sum(), list(model.parameters()))


def assert_same(model, traced, x):
    expected, expected_gradients = output_and_gradients(model, x)
    output, actual_gradients = output_and_gradients(traced, x)
    torch.testing.assert_close(output, expected, rtol=1e-9, atol=1e-9)
    # rounding errors of the largest gradients affect the smallest ones, depending on the CPU
    largest = max(float(gradient.abs().max()) for gradient in expected_gradients)
    for actual, reference in zip(actual_gradients, expected_gradients, strict=True):
        torch.testing.assert_close(actual, reference, rtol=1e-6, atol=1e-6 + 1e-16 * largest)


@parametrize_models_in_turn
def test_torch_fx_traces_a_model_with_the_same_outputs_and_gradients(name, training):
    model, x = create_model_and_images(name)
    assert_same(model.train(training), fx.symbolic_trace(model), x)


@parametrize_models
def test_torchvision_extracts_the_output_of_each_layer(name):
    model, x = create_model_and_images(name)
    model.eval()
    layers = [key for key, module in model.named_modules() if isinstance(module, Layer) and "embedding" not in key]
    _, nodes = get_graph_node_names(model)
    assert layers
    assert set(layers) <= set(nodes)
    captured = {}
    for key in layers:
        model.get_submodule(key).register_forward_hook(lambda _, __, output, key=key: captured.update({key: output}))
    extracted = create_feature_extractor(model, layers)(x)
    model(x)
    assert all(torch.equal(extracted[key], captured[key]) for key in layers)


def test_timm_extracts_features_by_fx_with_layers_as_leaves():
    model, x = create_model_and_images("lambda_resnet20_small", features_only=True, feature_cls="fx")
    torch.manual_seed(0)
    reference = timm.create_model("lambda_resnet20_small", num_classes=5, features_only=True).double()
    for actual, expected in zip(model.eval()(x), reference.eval()(x), strict=True):
        assert torch.equal(actual, expected)
