"""Recipes as JSON and as Python files, and the checks of their fields."""

from dataclasses import replace

import pytest

from lambdanets.recipes import find_recipe
from lambdanets.recipes.digits import recipe as DIGITS
from lambdanets.training.classification.recipe import ClassificationRecipe

IMPORT = "from lambdanets.training.classification.recipe import ClassificationRecipe\nrecipe = "


def test_recipe_json_round_trip():
    recipe = replace(DIGITS, model_options={"scope": 7}, mean=[0.4], clip_gradient=1)
    assert ClassificationRecipe.from_json(recipe.to_json().encode(), "here") == recipe
    assert recipe.mean == (0.4,)


def test_find_recipe_accepts_a_python_file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(f"{IMPORT}ClassificationRecipe(epochs=7)\n")
    assert find_recipe(str(path)).epochs == 7


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("epochs = 7\n", r"mine\.py must assign recipe"),
        (f"{IMPORT}ClassificationRecipe(epoch=3)", "no field 'epoch'; the nearest is epochs"),
        (f"{IMPORT}ClassificationRecipe(epochs='3')", "epochs must be a valid integer, got '3'"),
        (f"{IMPORT}ClassificationRecipe(", "SyntaxError"),
        ("class Silent(Exception):\n    def __str__(self): raise TypeError\nraise Silent", r"cannot be run: Silent: "),
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
        (b"{", "run is not a valid recipe: "),
        (b"[]", r"run is not a valid recipe: it must be an object, got \[\]"),
        (b"{}", "run must have the field 'data'"),
        (b'{"data": "digits", "model": "x", "epochs": "many"}', "run: epochs must be a valid integer, got 'many'"),
        (b'{"epoch": 3}', "run: .* no field 'epoch'; the nearest is epochs"),
    ],
)
def test_rejects_an_invalid_recipe_json(content, message):
    with pytest.raises(ValueError, match=message):
        ClassificationRecipe.from_json(content, "run")


INVALID = [
    *(("epochs", 0), ("batch_size", 1), ("batch_size", 10**12), ("training_images", 0), ("learning_rate", -1.0)),
    *(("learning_rate", float("nan")), ("warmup_epochs", float("inf")), ("clip_gradient", -1.0), ("momentum", 1.0)),
    *(("drop_path", 1.5), ("validation_share", 1e-9), ("hold_out", 0.99), ("image_size", 3), ("workers", -1)),
    *(("std", (0.0,)), ("mean", (0.5, 0.5)), ("scale", (0.9, 0.1)), ("ratio", (0.0, 1.0)), ("channels", 2)),
    *(("optimizer", "lion"), ("flip", None), ("model_options", None), ("data", 7), ("seed", True), ("micro_batch", 1)),
]


@pytest.mark.parametrize(("field", "value"), INVALID)
def test_rejects_a_recipe_field_out_of_range(field, value):
    with pytest.raises(ValueError, match=rf"^{field}(\[0\])? must be"):
        replace(DIGITS, **{field: value})
