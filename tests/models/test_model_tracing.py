"""Whole models under torch.fx: feature extraction of torchvision and of timm."""

import pytest
import timm
import torch
from torchvision.models.feature_extraction import create_feature_extractor, get_graph_node_names

from lambdanets.layers.module import Layer

MODELS = {
    "lambda_resnet20_small": {},
    "resnet20_mixer_small": {"mixer": "local_attention", "scope": 3},
    "mobilenetv2_lambda": {},
}


def create_model_and_images(name, **options):
    torch.manual_seed(0)
    # float64, because batch norm over only two values amplifies rounding errors
    model = timm.create_model(name, num_classes=5, **MODELS[name], **options).double()
    return model, torch.randn(2, 3, 32, 32, dtype=torch.float64)


@pytest.mark.parametrize("name", MODELS)
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
