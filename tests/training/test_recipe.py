from dataclasses import replace

import pytest

from lambdanets.errors import InputError
from lambdanets.recipes import find_recipe
from lambdanets.recipes.digits import recipe as DIGITS
from lambdanets.training.classification.recipe import ClassificationRecipe


def test_recipe_json_round_trip():
    recipe = replace(DIGITS, model_options={"scope": 7}, mean=(0.4,), clip_gradient=1.0)
    assert ClassificationRecipe.from_json(recipe.to_json().encode(), "here") == recipe


def test_find_recipe_accepts_a_python_file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from lambdanets.training.classification.recipe import ClassificationRecipe\n"
        "recipe = ClassificationRecipe(epochs=7)\n"
    )
    assert find_recipe(str(path)).epochs == 7


def test_rejects_a_file_without_a_recipe(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("epochs = 7\n")
    with pytest.raises(ValueError, match=r"mine\.py must assign recipe"):
        find_recipe(str(path))


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("ClassificationRecipe(epoch=3)", "unexpected keyword argument 'epoch'; the nearest is epochs"),
        ("ClassificationRecipe(epochs='3')", "epochs must be an integer, at least 1 and at most 1,000,000, got '3'"),
        ("ClassificationRecipe(", "SyntaxError"),
        ("undefined", "NameError"),
    ],
)
def test_error_in_a_recipe_file_is_reported(expression, message, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        f"from lambdanets.training.classification.recipe import ClassificationRecipe\nrecipe = {expression}\n"
    )
    with pytest.raises(ValueError, match=message):
        find_recipe(str(path))


def test_error_without_a_message_in_a_recipe_file_is_reported_by_type(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "class SilentError(Exception):\n    def __str__(self):\n        raise TypeError\nraise SilentError\n"
    )
    with pytest.raises(ValueError, match=r"mine\.py cannot be run: SilentError: SilentError$"):
        find_recipe(str(path))


def test_unknown_recipe_error_suggests_the_nearest():
    with pytest.raises(ValueError, match=r"must be one of cifar10, .*, got 'digit'; the nearest is digits"):
        find_recipe("digit")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "run is not a valid recipe: "),
        (b"\xff", "run is not a valid recipe: "),
        (b"[]", r"run is not a valid recipe: it must be an object, got \[\]"),
        (b"{}", "run must have the field 'data'"),
        (b'{"data": "digits", "model": "x", "epochs": "many"}', "run: epochs must be an integer, .* got 'many'"),
        (b'{"epoch": 3}', "run has the unknown field 'epoch'; the nearest is epochs"),
    ],
)
def test_rejects_an_invalid_recipe_json(content, message):
    with pytest.raises(ValueError, match=message):
        ClassificationRecipe.from_json(content, "run")


INVALID = [
    ("epochs", 0),
    ("batch_size", 1),
    ("training_images", 0),
    ("learning_rate", -1.0),
    ("drop_path", 1.5),
    ("validation_share", 1.0),
    ("std", (0.0,)),
    ("mean", (0.5, 0.5)),
    ("scale", (0.9, 0.1)),
    ("ratio", (0.0, 1.0)),
    ("channels", 2),
    ("precision", "fp8"),
    ("optimizer", "lion"),
    ("workers", -1),
    ("flip", None),
    ("model_options", None),
    ("learning_rate", float("nan")),
    ("warmup_epochs", float("inf")),
    ("clip_gradient", -1.0),
    ("momentum", 1.0),
    ("interpolation", "nearest"),
    ("data", 7),
    ("seed", True),
    ("image_size", 3),
    ("batch_size", 10**12),
    ("validation_share", 0.99999),
    ("validation_share", 1e-9),
    ("hold_out", 0.99999),
]


@pytest.mark.parametrize(("field", "value"), INVALID)
def test_rejects_a_recipe_field_out_of_range(field, value):
    with pytest.raises(ValueError, match=rf"^{field} must be"):
        replace(DIGITS, **{field: value})


def test_recipes_of_earlier_versions_are_read_unless_they_have_pseudo_labels():
    fields = DIGITS.fields() | {"pseudo_labels": None, "pseudo_images": None, "pseudo_ratio": 1.0}
    assert ClassificationRecipe.from_fields(fields, "recipe.json") == DIGITS
    with pytest.raises(InputError, match="unknown field 'pseudo_labels'"):
        ClassificationRecipe.from_fields(fields | {"pseudo_labels": "labels"}, "recipe.json")
