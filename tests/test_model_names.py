"""Names of packaged models beside folders of the same name, which have no weights."""

import json
import shutil
from dataclasses import replace

import pytest
from PIL import Image
from safetensors.torch import load_file

import lambdanets as ln
from commands import succeed
from lambdanets.errors import InputError
from lambdanets.models.weights import FOLDER
from lambdanets.recipes.digits import recipe as DIGITS
from lambdanets.tasks.recipes import DetectionRecipe
from lambdanets.training import run
from lambdanets.training.distributed import World
from lambdanets_lab.demo.examples import draw_nuclei
from training.detection.tiny_detection import tiny_recipe
from training.runs import quick_recipe

NAMES = ("digits", "nuclei", "cifar10")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with a folder of images for each name, and a config.json that is not timm's in one of them."""
    monkeypatch.chdir(tmp_path)
    for name in NAMES:
        (tmp_path / name).mkdir()
        draw_nuclei(1, seed=0)[0].resize((64, 8)).save(tmp_path / name / "a.png")
    (tmp_path / "digits/config.json").write_text("{}")
    (tmp_path / "digits/curves.png").write_bytes(b"of something else")
    return tmp_path


def test_folders_of_images_and_of_outputs_may_have_the_name_of_the_model(folder):
    succeed("predict", "digits", "digits/a.png")
    succeed("predict", "nuclei", "nuclei", "--out", "found")
    assert json.loads((folder / "found/images.json").read_text())["images"][0]["file_name"] == "nuclei/a.png"
    shutil.move(folder / "nuclei", folder / "micrographs")
    succeed("predict", "nuclei", "micrographs", "--out", "nuclei")
    assert (folder / "nuclei/results.json").is_file()


def test_training_starts_from_a_model_beside_a_folder_of_its_name(folder, two_classes):
    model = {"weights": "cifar10", "model": "lambda_resnet20_small", "model_options": {}}
    recipes = replace(quick_recipe(two_classes), **model), tiny_recipe(folder / "scattered", **model)
    classifier, detector = (run.open_task(run.resolve_recipe(recipe), World()) for recipe in recipes)
    assert classifier.model.conv1.weight.equal(detector.model.backbone.network.conv1.weight)
    assert run.resolve_recipe(detector.recipe).weights == "cifar10"


def test_folders_and_files_with_names_of_data_sets_are_paths(folder):
    (folder / "torch").mkdir()
    (folder / "torch/train.json").touch()
    paths = {"data": "torch/train.json", "images": "digits", "validation_data": "torch/train.json"}
    absolute = {name: str(folder / path) for name, path in paths.items()}
    resolved = run.resolve_recipe(DetectionRecipe(**paths, model="resnet18"))
    assert {name: getattr(resolved, name) for name in paths} == absolute
    assert run.absolute_paths(replace(DIGITS, data="torch/cifar10")) == {}
    with pytest.raises(InputError, match="model must be given"):
        run.resolve_recipe(DetectionRecipe(**paths, weights="nuclei"))


def test_python_finds_models_beside_folders_of_their_names(folder):
    expected = load_file(FOLDER / "digits.safetensors")["fc.bias"]
    saved = ln.save_pretrained("digits", folder / "saved")
    assert not (saved / "curves.png").exists()
    networks = (
        ln.load("digits", device="cpu").model,
        ln.load(saved, device="cpu").model,
        ln.create_model("lambda_resnet20_small", pretrained="digits"),
        ln.create_model(f"local-dir:{saved}", pretrained=True),
    )
    assert all(network.fc.bias.equal(expected.float()) for network in networks)
    assert ln.explain("digits", Image.new("L", (16, 16))).layers
