"""Trained models that come with the package."""

import json
import re

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors import safe_open

import lambdanets as ln
from data.coco import coco_files
from lambdanets.errors import InputError
from lambdanets.models.weights import FOLDER, find_weights, packaged_models
from lambdanets_lab.demo.examples import draw_nuclei

NAMES = packaged_models()


def test_all_models_together_are_smaller_than_20_mb():
    assert "digits" in NAMES
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 20e6


@pytest.mark.parametrize("name", NAMES)
def test_model_is_loaded_by_name_and_its_card_has_no_paths(name):
    model = ln.load(name, device="cpu")
    assert model.classes
    text = safe_open(find_weights(name).file, "pt").metadata()["lambdanets"]
    card = json.loads(text)
    strings = [value for part in (card, card["recipe"], card.get("source", {})) for value in part.values()]
    assert not [value for value in strings if isinstance(value, str) and value.startswith("/")]


def test_digits_are_classified():
    assert ln.evaluate("digits").top1 >= 0.97


def test_photo_of_a_cat_is_classified():
    skimage_data = pytest.importorskip("skimage.data")
    (prediction,) = ln.load("cifar10", device="cpu").predict(Image.fromarray(skimage_data.chelsea()))
    assert prediction.class_name == "cat"


def test_other_number_of_classes_reinitializes_the_classifier(tmp_path):
    trained = ln.create_model("lambda_resnet20_small", pretrained="digits")
    network = ln.create_model("lambda_resnet20_small", pretrained="digits", num_classes=4)
    assert network.fc.weight.shape == (4, 512)
    assert torch.equal(network.layer4[0].conv1.weight, trained.layer4[0].conv1.weight)
    assert ln.create_model("lambda_resnet20_small", pretrained="digits", num_classes=0)(torch.randn(2, 1, 16, 16)).shape
    distilled = {"name": "deit_tiny_distilled_patch16_224", "depth": 1}  # has two classifiers
    torch.save(ln.create_model(**distilled, num_classes=2).state_dict(), tmp_path / "deit.pth")
    assert not ln.create_model(**distilled, pretrained=tmp_path / "deit.pth", num_classes=0).num_classes
    with pytest.raises(ValueError, match=r"embedding.table .* only in the file"):
        ln.create_model("lambda_resnet20_small", pretrained="digits", num_classes=4, position=False)


def test_weights_of_rgb_images_fit_images_with_other_channels():
    name, x = "lambda_resnet20_small", torch.rand(2, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    expected = ln.create_model(name, "cifar10").eval()(x.expand(-1, 3, -1, -1))
    torch.testing.assert_close(ln.create_model(name, "cifar10", in_chans=1).eval()(x), expected)
    actual = ln.create_model(name, "cifar10", in_chans=12).eval()(x.expand(-1, 12, -1, -1))
    torch.testing.assert_close(actual, expected)


def test_rejects_other_architectures_and_unknown_names():
    with pytest.raises(InputError, match="resnet50_lambda classifier, got 'digits', a classification model"):
        ln.create_model("resnet50_lambda", pretrained="digits")
    with pytest.raises(InputError, match="nearest is digits"):
        ln.load("digit")


def test_a_path_with_weights_has_precedence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits/weights.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match=r"digits/weights\.safetensors is not a readable safetensors file"):
        ln.load("digits")


def test_nuclei_in_12_bit_images_are_predicted_and_evaluated_alike(tmp_path):
    image, _ = draw_nuclei(8, seed=0)
    deep = Image.fromarray(np.asarray(image).astype(np.uint16) * 8)
    deep.save(tmp_path / "a.png")
    detector = ln.load("nuclei", device="cpu")
    (expected,), (of_image,) = detector.predict(tmp_path / "a.png"), detector.predict(deep)
    assert len(expected.above(0.5)) == len(of_image.above(0.5)) >= 6
    images = [coco_files.image(1, "a.png", image.height, image.width)]
    truth = coco_files.content(coco_files.annotation(1, category_id=1), images=images)
    truth["categories"] = [{"id": 1, "name": detector.categories[0].name}]
    coco_files.write(tmp_path / "truth.json", truth)
    evaluation = ln.evaluate(detector, tmp_path / "truth.json", images=tmp_path)
    scores = sorted((result["score"] for _, found in evaluation.measures for result in found), reverse=True)
    assert scores == pytest.approx(expected.scores.tolist(), abs=1e-4)


@pytest.mark.parametrize("name", ["convnext_atto", "densenet121", "mobilenetv2_lambda", "unet_small"])
def test_feature_maps_have_the_weights_of_a_file_of_a_network(name, tmp_path, capsys):
    """timm replaces points in the names of modules by underscores, or puts "model." or "graph_module." before them."""
    model = ln.create_model(name, num_classes=2).eval()
    path = tmp_path / "weights.pth"
    torch.save(model.state_dict(), path)
    options = {} if name in ("mobilenetv2_lambda", "unet_small") else {"feature_cls": "list"}
    features = ln.create_model(name, pretrained=path, num_classes=2, features_only=True, **options).eval()
    reference = timm.create_model(name, features_only=True).eval()
    expected = {key.replace(".", "_"): tensor for key, tensor in model.state_dict().items()}
    actual = features.state_dict()
    assert actual.keys() == reference.state_dict().keys()
    for key, tensor in actual.items():
        assert torch.equal(tensor, expected[re.sub(r"^(model|graph_module)\.", "", key).replace(".", "_")])
    assert not capsys.readouterr().err  # that there are several networks in the file
