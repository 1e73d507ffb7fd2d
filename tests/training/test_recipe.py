"""Recipes as JSON and as Python files, and the checks of their fields."""

import itertools
from dataclasses import replace

import pytest
import torch

from lambdanets.errors import InputError
from lambdanets.recipes import find_recipe
from lambdanets.recipes.digit_masks import recipe as SEGMENTER
from lambdanets.recipes.digits import recipe as DIGITS
from lambdanets.recipes.scattered_digits import recipe as DETECTOR
from lambdanets.records import write_json
from lambdanets.tasks.recipes import DetectionRecipe
from lambdanets.training.distributed import World
from lambdanets.training.recipe import read_recipe
from lambdanets.training.run import describe, open_task, resolve_recipe

IMPORT = "from lambdanets.tasks.recipes import ClassificationRecipe\nrecipe = "


@pytest.mark.parametrize("recipe", [DIGITS, DETECTOR, SEGMENTER], ids=lambda recipe: recipe.task)
def test_recipe_json_round_trip(recipe, tmp_path):
    recipe = replace(recipe, model_options={"scope": 7}, mean=[*recipe.mean], clip_gradient=1)
    write_json(tmp_path / "recipe.json", recipe.fields())
    assert read_recipe(tmp_path / "recipe.json") == recipe


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("epochs = 7\n", r"mine\.py must assign recipe"),
        (f"{IMPORT}ClassificationRecipe(epoch=3)", "no field 'epoch'; the nearest is epochs"),
        (f"{IMPORT}ClassificationRecipe(epochs='3')", "epochs must be a valid integer, got '3'"),
        (f"{IMPORT}ClassificationRecipe(", "SyntaxError"),
    ],
)
def test_error_in_a_recipe_file_is_reported(content, message, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        find_recipe(str(path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is not a valid recipe: "),
        (b"[]", r"is not a valid recipe: it must be an object, got \[\]"),
        (b'{"task": "detection", "epochs": "many"}', "recipe.json: epochs must be a valid integer, got 'many'"),
        (b'{"task": ["detection"]}', r"task in .* must be one of classification, .*, segmentation, got"),
        (b'{"task": "detection", "epoch": 3}', "recipe.json: .* no field 'epoch'; the nearest is epochs"),
    ],
)
def test_rejects_an_invalid_recipe_json(content, message, tmp_path):
    (tmp_path / "recipe.json").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_recipe(tmp_path / "recipe.json")


@pytest.mark.parametrize(
    ("recipe", "field", "value"),
    [
        *((DIGITS, "epochs", 0), (DIGITS, "learning_rate", float("nan")), (DIGITS, "optimizer", "lion")),
        *((DIGITS, "std", (0.0,)), (DIGITS, "mean", (0.5, 0.5)), (DIGITS, "scale", (0.9, 0.1)), (DIGITS, "flip", None)),
        *((DETECTOR, "jitter", (2.0, 1.0)), (DETECTOR, "levels", ()), (DETECTOR, "mean", (0.5,))),
        *((SEGMENTER, "image_size", 16), (SEGMENTER, "dice_weight", -1.0)),
    ],
)
def test_rejects_a_recipe_field_out_of_range(recipe, field, value):
    with pytest.raises(InputError, match=rf"^{field}(\[\d\])? must "):
        replace(recipe, **{field: value})


@pytest.mark.parametrize("field", ["images", "validation_data", "validation_images"])
def test_rejects_other_images_for_scattered_digits(field):
    with pytest.raises(InputError, match=f"^{field} must not be set with data 'digits', .* got 'there'"):
        replace(DETECTOR, **{field: "there"})


def test_annotation_files_require_images_and_validation_data():
    recipe = DetectionRecipe(data="train.json", images="images", validation_data="val.json")
    for missing, value in itertools.product(("images", "validation_data"), (None, "")):
        with pytest.raises(InputError, match=rf"^{missing} must be given"):
            resolve_recipe(replace(recipe, **{missing: value}))


def test_a_started_run_keeps_its_precision_on_another_machine(tmp_path):
    write_json(tmp_path / "recipe.json", replace(DIGITS, precision="bf16-mixed").fields())
    assert resolve_recipe(DIGITS, tmp_path).precision == "bf16-mixed"
    assert resolve_recipe(replace(DIGITS, precision="32-true"), tmp_path).precision == "32-true"


@pytest.mark.parametrize(
    ("fields", "warning"),
    [
        ({"precision": "bf16-mixed"}, "bf16-mixed is several times as slow as 32-true"),
        ({"epochs": 1}, "warmup_epochs is 2, and epochs is 1: the learning rate rises until the end"),
        ({"decay": 0.9}, "decay and decay_epochs have no effect with schedule cosine; choose --schedule staircase"),
    ],
)
def test_options_that_are_probably_a_mistake_are_named(fields, warning, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    describe(open_task(replace(DIGITS, **fields), World()))
    assert warning in capsys.readouterr().err
