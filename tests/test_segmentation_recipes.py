"""The segmentation recipes of the package: docstrings, commands, the baseline, and quicktests."""

import importlib
import json
import re
import shlex
from dataclasses import replace
from itertools import pairwise

import pytest

from lambdanets.cli import main
from lambdanets.recipes import find_recipe, list_recipes
from lambdanets.training import run
from lambdanets.training.segmentation.recipe import SegmentationRecipe
from lambdanets.training.tasks import read_recipe

RECIPES = list(list_recipes(SegmentationRecipe))


def load_recipe(name):
    return find_recipe(name, SegmentationRecipe)


@pytest.mark.parametrize("name", RECIPES)
def test_docstring_of_a_segmentation_recipe_has_a_summary_and_a_command(name, tmp_path, monkeypatch):
    doc = importlib.import_module(f"lambdanets.recipes.segmentation.{name}").__doc__
    first = doc.splitlines()[0]
    assert len(first) <= 120
    assert re.search(r"Dice \d\d\.\d%|Dice depends on the data", first)
    started = []
    monkeypatch.setattr(run, "start", lambda recipe, folder: started.append(recipe) or {})
    monkeypatch.chdir(tmp_path)
    (command,) = [line for line in doc.splitlines() if line.startswith("Run: ")]
    arguments = shlex.split(command)
    assert arguments[1:5] == ["lambdanets", "segment", "train", name]
    assert main(arguments[2:]) == 0
    options = {option.removeprefix("--").replace("-", "_"): value for option, value in pairwise(arguments)}
    for field in SegmentationRecipe.PATHS:
        assert getattr(started[0], field) != ""
        assert getattr(started[0], field) == options.get(field, getattr(load_recipe(name), field))


def test_the_baseline_of_segmented_nuclei_differs_only_in_the_network():
    recipe, baseline = load_recipe("nuclei"), load_recipe("nuclei_convolution")
    assert (recipe.model, baseline.model) == ("lambda_unet_small", "unet_small")
    assert replace(baseline, model=recipe.model) == recipe


@pytest.mark.slow
# every recipe but digits, whose quicktest is in test_segment_command.py
@pytest.mark.parametrize("name", ["nuclei", "nuclei_convolution", "regions"])
def test_segmentation_quicktest_keeps_recipe_options_at_small_size(name, tmp_path, capsys):
    assert main(["segment", "train", name, "--quicktest", "--run", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[0] == "mean"
    assert json.loads((tmp_path / "run/result.json").read_text())["epochs"] == 2
    recipe, small = load_recipe(name), read_recipe(tmp_path / "run/recipe.json")
    assert small.image_size <= 64
    for field in ("model", "model_options", "jitter", "flip", "rotate", "schedule", "ema_decay", "clip_gradient"):
        assert getattr(small, field) == getattr(recipe, field)
