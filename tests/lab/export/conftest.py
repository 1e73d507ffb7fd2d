"""A model of few layers, and a detector with its exported file: exports are slow."""

import functools
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import lambdanets as ln
from lambdanets.inference.model_card import ClassifierCard, make_card
from lambdanets.models.weights import WEIGHTS, save_weights
from lambdanets.training.initial_weights import build_model
from noise_images import write_two_classes
from training.detection.constructed_detector import write_constructed_detector
from training.runs import SHALLOW, quick_recipe


@pytest.fixture(scope="session", autouse=True)
def shared_onnx_functions() -> Iterator[None]:
    """Cache the operator functions of torch.onnx, which it otherwise builds for each export, in about a second."""
    with pytest.MonkeyPatch.context() as patch:
        with suppress(ImportError, AttributeError):  # another version of PyTorch, or onnxscript is not installed
            from torch.onnx._internal.exporter._registration import onnxscript_apis

            patch.setattr(onnxscript_apis, "get_torchlib_ops", functools.cache(onnxscript_apis.get_torchlib_ops))
        yield


@pytest.fixture(scope="session")
def shallow_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the weights of a shallow LambdaResNet, constructed to classify two classes. Read-only."""
    folder = tmp_path_factory.mktemp("shallow")
    recipe = quick_recipe(write_two_classes(folder / "images"))
    recipe = replace(recipe, model_options=SHALLOW | {"zero_init_last": False}, drop_path=0.0)
    torch.manual_seed(0)
    model = build_model(recipe, 2).eval()
    with torch.no_grad():
        levels = [torch.randn(20, 3, 8, 8) / 2 + level for level in (-1, 1)]  # as the classes dark and light
        dark, light = (model.forward_head(model.forward_features(x), pre_logits=True).mean(0) for x in levels)
        direction = (dark - light) / (dark - light).square().sum()
        head = model.get_classifier()
        head.weight.copy_(10 * torch.stack((direction, -direction)))
        head.bias.copy_(-head.weight @ (dark + light) / 2)
    (folder / "run").mkdir()
    card = make_card(ClassifierCard, recipe, ("dark", "light"))
    save_weights(folder / "run" / WEIGHTS, model, card.to_json())
    return folder / "run"


@pytest.fixture(scope="session")
def exported_detector(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A constructed detector, its folder of images, and its ONNX file for images of any size."""
    folder = tmp_path_factory.mktemp("exported_detector")
    write_constructed_detector(folder)
    detector = ln.load(folder / "initial.safetensors", device="cpu")
    exported = ln.export(detector, folder / "m.onnx", dynamic=True)
    return SimpleNamespace(detector=detector, images=folder / "digits", exported=exported)
