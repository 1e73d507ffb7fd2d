from dataclasses import replace

import pytest
import timm
import torch
from safetensors.torch import save_file

from lambdanets.errors import InputError
from lambdanets.inference.model_card import ClassifierCard, make_card
from lambdanets.models.weights import save_weights
from lambdanets.recipes.digits import recipe as CLASSIFIER
from lambdanets.recipes.scattered_digits import recipe as DIGITS
from lambdanets.training.initial_weights import build_model
from training.runs import initialized_model


@pytest.mark.parametrize("name", ["lambda_resnet20_small", "mobilenetv2_lambda"])  # with other layer names in timm
def test_classifier_weights_initialize_the_backbone(name, tmp_path):
    recipe, path = replace(CLASSIFIER, channels=3, model=name), tmp_path / "weights.safetensors"
    classifier = build_model(recipe, 6)
    save_weights(path, classifier, make_card(ClassifierCard, recipe, "abcdef").to_json())
    weights = {name.replace(".", "_"): tensor for name, tensor in classifier.state_dict().items()}
    models, recipe = [], replace(DIGITS, model=name, weights=str(path), pyramid_channels=8)
    for build in (initialized_model, lambda recipe, classes: build_model(recipe, len(classes))):
        torch.manual_seed(1)
        models.append(build(recipe, "abc"))
    network = models[0].backbone.network.state_dict()
    assert len(network) > 50
    for name, tensor in network.items():
        assert torch.equal(tensor, weights[name.removeprefix("model.").replace(".", "_")]), name
    states = [model.state_dict() for model in models]
    others = {name for name in states[0] if not name.startswith("backbone.network.")}
    assert all(torch.equal(states[0][name], states[1][name]) for name in others)


def test_error_for_pretrained_suggests_a_weight_file(tmp_path):
    recipe = replace(DIGITS, model="resnet10t", pyramid_channels=8)
    with pytest.raises(
        InputError, match=r"save the network's state dict as a \.safetensors file and pass that file as weights"
    ):
        build_model(replace(recipe, model_options={"pretrained": True}), 3)
    weights = timm.create_model("resnet10t").state_dict()
    save_file(weights, tmp_path / "resnet10t.safetensors")
    model = initialized_model(replace(recipe, weights=str(tmp_path / "resnet10t.safetensors")), "abc")
    network = model.backbone.network.state_dict()
    assert weights.keys() - network.keys() == {"fc.weight", "fc.bias"}
    assert all(torch.equal(tensor, weights[name]) for name, tensor in network.items())


def test_images_are_resized_in_evaluation_but_not_in_training():
    model = build_model(replace(DIGITS, image_size=32, levels=(2, 3), pyramid_channels=8), 2)
    image = torch.rand(3, 20, 30)
    assert model.eval().transform([image])[0].image_sizes == [(21, 32)]
    assert model.train().transform([image])[0].image_sizes == [(20, 30)]
