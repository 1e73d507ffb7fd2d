"""The detection recipes of the package: the paper's hyperparameters, docstrings, commands, and quicktests."""

import importlib
import json
import re
import shlex
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from lambdanets.cli import main
from lambdanets.cli.detect import Train
from lambdanets.cli.training import parse_with_recipe
from lambdanets.errors import InputError
from lambdanets.recipes import find_recipe, list_recipes, list_variants
from lambdanets.training import launching, run
from lambdanets.training.detection.model import DetectionProbe
from lambdanets.training.detection.recipe import DetectionRecipe
from lambdanets.training.module import make_schedule
from lambdanets.training.tasks import read_recipe

RECIPES = list(list_recipes(DetectionRecipe))
VARIANTS = [variant for name in RECIPES for variant in list_variants(name, DetectionRecipe)]


def load_recipe(name):
    return find_recipe(name, DetectionRecipe)


def docstring(name):
    return importlib.import_module(f"lambdanets.recipes.detection.{name}").__doc__


@pytest.mark.parametrize("name", [*RECIPES, *VARIANTS])
def test_every_detection_recipe_builds_a_detector(name):
    with torch.device("meta"):
        model = DetectionProbe(load_recipe(name), 80).build()
    assert sum(parameter.numel() for parameter in model.parameters()) > 1e5
    assert len(model.backbone.strides) == len(load_recipe(name).levels) + 1


@pytest.mark.parametrize("name", RECIPES)
def test_docstrings_of_detection_recipes_begin_with_a_summary(name):
    first = list_recipes(DetectionRecipe)[name]
    assert 20 < len(first) <= 120
    assert first.endswith(".")
    assert re.search(r"\d{2}%|AP|[Nn]ot measured|Not run", docstring(name))


@pytest.mark.parametrize("name", RECIPES)
def test_the_command_in_a_detection_recipe_docstring_parses(name, tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(run, "start", lambda recipe, folder: started.append((recipe, folder)) or {})
    monkeypatch.setattr(launching, "launch", lambda count, command: main(command))
    monkeypatch.chdir(tmp_path)
    (command,) = [line for line in docstring(name).splitlines() if line.startswith("Run: ")]
    arguments = shlex.split(command)
    assert arguments[1:4] == ["lambdanets", "detect", "train"]
    assert arguments[4].startswith(name)
    assert main(arguments[2:]) == 0
    ((recipe, _),) = started
    options = {option.removeprefix("--").replace("-", "_"): value for option, value in pairwise(arguments)}
    for field in DetectionRecipe.PATHS:
        assert getattr(recipe, field) != ""
        assert getattr(recipe, field) == options.get(field, getattr(load_recipe(arguments[4]), field))


def test_coco_recipe_has_the_papers_hyperparameters():
    recipe = load_recipe("coco")
    assert (recipe.batch_size, recipe.learning_rate, recipe.weight_decay, recipe.momentum) == (256, 0.32, 4e-5, 0.9)
    assert (recipe.image_size, recipe.jitter, recipe.sync_batch_norm) == (1024, (0.1, 2.0), True)
    steps = recipe.epochs * (118_287 // 256)
    assert steps == pytest.approx(130_000, rel=0.005)
    factor = make_schedule(recipe, 118_287 // 256)
    assert factor(999) == pytest.approx(1, abs=2e-3)
    assert factor(500) == pytest.approx(0.5, abs=2e-3)
    fractions = (0.899, 0.901, 0.951, 0.976)
    assert [factor(round(fraction * steps)) for fraction in fractions] == pytest.approx([1, 0.1, 0.01, 0.001])


def test_the_rows_of_table_14_differ_only_in_the_backbone():
    models = {name.removeprefix("coco_"): load_recipe(name).model for name in list_variants("coco", DetectionRecipe)}
    assert models == {
        f"{name}{depth}": model.format(depth)
        for name, model in (("lambda", "lambda_resnet{}"), ("plain", "resnetrs{}_plain"), ("se", "resnetrs{}"))
        for depth in (101, 152)
    }
    for name in list_variants("coco", DetectionRecipe):
        assert replace(load_recipe(name), model=load_recipe("coco").model) == load_recipe("coco")
    assert load_recipe("coco") == load_recipe("coco_lambda152")


def test_the_baseline_of_nuclei_differs_only_in_the_network():
    recipe, baseline = load_recipe("nuclei"), load_recipe("nuclei_convolution")
    assert replace(baseline, model=recipe.model, model_options=recipe.model_options) == recipe
    assert baseline.model_options == recipe.model_options | {"mixer": "convolution"}


@pytest.mark.parametrize("name", [name for name in RECIPES if name != "digits"])
def test_detection_recipe_without_data_is_rejected(name, tmp_path):
    with pytest.raises(InputError, match=r"data must be given; set it with --data PATH"):
        run.start(load_recipe(name), tmp_path / "run")


@pytest.mark.slow
# every recipe but digits, whose quicktest is in test_detect_command.py, and a variant without lambda layers
@pytest.mark.parametrize("name", [*(name for name in RECIPES if name != "digits"), "nuclei_convolution"])
def test_detection_quicktest_keeps_recipe_options_at_small_size(name, tmp_path, capsys):
    assert main(["detect", "train", name, "--quicktest", "--run", str(tmp_path / "run")]) == 0
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert result["epochs"] == 2
    assert "masks  AP " in capsys.readouterr().out.splitlines()[-1]
    recipe, small = load_recipe(name), read_recipe(tmp_path / "run/recipe.json")
    assert result["parameters"] < 60e6
    assert small.image_size <= 64
    assert small.batch_size * small.epochs <= 8
    for field in ("jitter", "flip", "schedule", "ema_decay", "clip_gradient", "levels", "aspect_ratios", "mean"):
        assert getattr(small, field) == getattr(recipe, field)


@pytest.mark.parametrize(
    ("model", "expected"),
    [("resnet50", {}), ("resnetrs101_plain", {}), ("lambda_resnet50", {"small_images": False})],
)
def test_another_model_drops_the_options_that_it_does_not_have(model, expected):
    recipe = find_recipe("objects", DetectionRecipe)
    options = parse_with_recipe(Train, recipe, ["--model", model], prog="", description="")
    assert options.recipe.model_options == expected
