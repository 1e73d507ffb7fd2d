"""The recipes of the package: the paper's hyperparameters, docstrings, commands, and quicktests."""

import importlib
import json
import re
from dataclasses import replace

import pytest
import torch

from lambdanets.cli import main
from lambdanets.cli.train import parse_train_command
from lambdanets.recipes import find_recipe, list_recipes, list_variants
from lambdanets.registry import RECIPE_PACKAGES
from lambdanets.training.initial_weights import build_model
from lambdanets.training.module import make_schedule

# Variants for the quicktest: one of imagenet_350 with early stopping on held-out images, which also covers imagenet_90,
# and one of cifar10 without lambda layers.
QUICKTEST_VARIANTS = {"imagenet_350": "imagenet_350_350_288", "cifar10": "cifar10_convolution"}
RECIPES = list_recipes()
BUILT = [each for name in list_recipes("classification") for each in (name, *list_variants(name))]
BUILT += [*list_recipes("detection"), *list_variants("coco"), "nuclei_convolution"]
NETWORKS = {repr((each.task, each.model, each.model_options)): name for name in BUILT for each in [find_recipe(name)]}
KEPT_BY_QUICKTEST = {
    "classification": ("optimizer", "rand_augment", "dropout", "hold_out", "patience"),
    "detection": ("jitter", "clip_gradient", "levels", "aspect_ratios", "mean"),
    "segmentation": ("jitter", "clip_gradient", "rotate", "model", "model_options"),
}


# those with pseudo-labels have the models of imagenet_350, as the test below shows
@pytest.mark.parametrize("name", NETWORKS.values())
def test_every_recipe_builds_a_model(name):
    recipe = find_recipe(name)
    with torch.device("meta"):
        model = build_model(replace(recipe, model=recipe.model or "lambda_resnet50", weights=None), 1000)
    assert sum(parameter.numel() for parameter in model.parameters()) > 1e5


def test_recipe_name_without_a_variant_is_its_default_variant():
    assert find_recipe("imagenet_350") == find_recipe("imagenet_350_50_128")
    assert find_recipe("imagenet_90") == find_recipe("imagenet_90_llll")
    assert find_recipe("imagenet_pseudo") == find_recipe("imagenet_pseudo_152_288")
    assert list_variants("finetune") == []  # those of image_folder, which it imports, are not its own


@pytest.mark.parametrize("name", RECIPES)
def test_docstring_of_a_recipe_has_a_command_that_starts_it(name):
    package = next(each for each in RECIPE_PACKAGES if importlib.util.find_spec(f"{each}.{name}"))
    docstring = importlib.import_module(f"{package}.{name}").__doc__
    (command,) = re.findall(f"^Run: lambdanets train ({name}.*)$", docstring, re.MULTILINE)
    recipe = parse_train_command(command.split())[2]
    assert all(getattr(recipe, field) != "" for field in recipe.PATHS)


@pytest.mark.parametrize("name", ["nuclei", "nuclei_masks", "digit_masks", "imagenet_mobilenetv2"])
def test_the_convolution_baseline_differs_only_in_the_network(name):
    recipe, baseline = find_recipe(name), find_recipe(f"{name}_convolution")
    assert replace(baseline, model=recipe.model, model_options=recipe.model_options) == recipe
    assert (baseline.model, baseline.model_options) != (recipe.model, recipe.model_options)


def test_imagenet_90_variants_are_the_rows_of_table_12():
    for pattern in ("CCCC", "LCCC", "LLCC", "LLLC", "LLLL", "CLLL", "CCLL", "CCCL"):
        recipe = find_recipe(f"imagenet_90_{pattern.lower()}")
        assert (recipe.model, recipe.model_options) == ("resnet50_lambda", {"pattern": pattern})
    assert find_recipe("imagenet_90_u4").model_options == {"pattern": "LLLL", "intra_depth": 4, "scope": 7}


@pytest.mark.parametrize("name", list_variants("imagenet_pseudo"))
def test_pseudo_label_recipes_differ_only_in_the_pseudo_labels(name):
    recipe = find_recipe(name)
    assert recipe.pseudo_labels == recipe.pseudo_images == ""
    plain = vars(find_recipe(name.replace("pseudo", "350")))
    assert {field: value for field, value in vars(recipe).items() if not field.startswith("pseudo")} == plain


QUICKTESTS = [QUICKTEST_VARIANTS.get(name, name) for name in RECIPES if name != "imagenet_pseudo"]
# of these, tests of pages and commands train the recipes, and one that is trained here has their fields
TRAINED_BY_OTHERS = ("digits", "digit_masks", "image_folder", "objects", "regions", "scattered_digits")
TRAINED_BY_OTHERS += ("imagenet_90", "nuclei_masks", "finetune", "fashion_mnist")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in QUICKTESTS if name not in TRAINED_BY_OTHERS])
def test_quicktest_trains_a_recipe(name, few_digits, tmp_path):
    model = ["--model", "lambda_resnet20_small"] if name.startswith(("coco", "finetune", "imagenet_350")) else []
    assert main(["train", name, "--quicktest", *model, "--run", str(tmp_path / "run")]) == 0
    assert json.loads((tmp_path / "run/result.json").read_text())["parameters"] < 60e6


@pytest.mark.parametrize("name", QUICKTESTS)
def test_quicktest_keeps_recipe_options_at_small_size(name):
    recipe, (*_, small) = find_recipe(name), parse_train_command([name, "--quicktest"])
    assert small.image_size <= 64
    assert small.batch_size * small.epochs <= 16
    kept = ("schedule", "ema_decay", "flip", *KEPT_BY_QUICKTEST[recipe.task])
    assert {name: getattr(small, name) for name in kept} == {name: getattr(recipe, name) for name in kept}


def test_options_override_those_of_a_quicktest():
    options = ["--quicktest", "--data", "PHOTOS", "--epochs", "1", "--weights", "cifar10"]
    _, _, recipe = parse_train_command(["finetune", *options])
    assert (recipe.data, recipe.weights, recipe.epochs, recipe.batch_size) == ("PHOTOS", "cifar10", 1, 4)
    assert recipe.training_images is None  # PHOTOS may have fewer, or more classes
    assert parse_train_command(["finetune", "--quicktest"])[2].data == "digits"


def test_coco_recipe_trains_for_the_steps_of_the_paper():
    recipe = find_recipe("coco")
    steps = recipe.epochs * (118_287 // 256)
    assert steps == pytest.approx(130_000, rel=0.005)
    factor = make_schedule(recipe, 118_287 // 256)
    assert factor(999) == pytest.approx(1, abs=2e-3)
    assert factor(500) == pytest.approx(0.5, abs=2e-3)
    fractions = (0.899, 0.901, 0.951, 0.976)
    assert [factor(round(fraction * steps)) for fraction in fractions] == pytest.approx([1, 0.1, 0.01, 0.001])


def test_the_rows_of_table_14_differ_only_in_the_backbone():
    names = list_variants("coco")
    assert {name.removeprefix("coco_"): find_recipe(name).model for name in names} == {
        f"{name}{depth}": model.format(depth)
        for name, model in (("lambda", "lambda_resnet{}"), ("plain", "resnetrs{}_plain"), ("se", "resnetrs{}"))
        for depth in (101, 152)
    }
    coco = find_recipe("coco")
    assert all(replace(find_recipe(name), model=coco.model) == coco for name in names)
    assert coco == find_recipe("coco_lambda152")
