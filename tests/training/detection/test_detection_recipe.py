import json
from dataclasses import replace

import pytest

from lambdanets.errors import InputError
from lambdanets.recipes.detection.digits import recipe as DETECTOR
from lambdanets.recipes.digits import recipe as DIGITS
from lambdanets.training.classification.recipe import ClassificationRecipe
from lambdanets.training.detection.recipe import DetectionRecipe
from lambdanets.training.run import resolve_recipe
from lambdanets.training.tasks import read_recipe

INVALID = [
    ("epochs", 0),
    ("batch_size", 0),
    ("micro_batch", 0),
    ("image_size", 0),
    ("training_images", 0),
    ("max_objects", 0),
    ("pyramid_channels", 0),
    ("mask_layers", -1),
    ("proposals", 0),
    ("sampled_regions", 0),
    ("max_detections", 0),
    ("anchor_scale", 0.0),
    ("flip", 1.5),
    ("drop_path", -0.1),
    ("compile", True),
    ("jitter", (0.0, 1.0)),
    ("jitter", (2.0, 1.0)),
    ("jitter", (1.0,)),
    ("mean", (0.5,)),
    ("std", (0.2, 0.2)),
    ("std", (0.2, 0.0, 0.2)),
    ("levels", ()),
    ("levels", (1.5,)),
    ("aspect_ratios", ()),
    ("aspect_ratios", (1.0, -1.0)),
    ("box_layers", (-1, 8)),
    ("box_layers", (0, 0)),
    ("clip_gradient", 0.0),
]


@pytest.mark.parametrize(("field", "value"), INVALID)
def test_rejects_a_detection_field_out_of_range(field, value):
    with pytest.raises(InputError, match=rf"^{field} must be"):
        replace(DETECTOR, **{field: value})


@pytest.mark.parametrize("field", ["images", "validation_data", "validation_images"])
def test_rejects_other_images_for_scattered_digits(field):
    with pytest.raises(InputError, match=f"^{field} must not be set with data 'digits', .* got 'there'"):
        replace(DETECTOR, **{field: "there"})


@pytest.mark.parametrize("missing", ["images", "validation_data"])
def test_annotation_files_require_images_and_validation_data(missing):
    fields = {"data": "train.json", "images": "train", "validation_data": "val.json"}
    DetectionRecipe(**fields)
    del fields[missing]
    with pytest.raises(InputError, match=rf"^{missing} must be set with data 'train.json'"):
        DetectionRecipe(**fields)


def test_error_for_missing_data_or_images_names_the_field():
    recipe = DetectionRecipe(data="", images="", validation_data="")
    with pytest.raises(InputError, match=r"^data must be given"):
        resolve_recipe(recipe)
    with pytest.raises(InputError, match=r"^images must be given"):
        resolve_recipe(replace(recipe, data="train.json"))


def test_detection_recipe_json_round_trip():
    recipe = replace(DETECTOR, model_options={"scope": 7}, levels=(1, 2), clip_gradient=None)
    content = recipe.to_json()
    assert json.loads(content)["task"] == "detection"
    assert DetectionRecipe.from_json(content.encode(), "here") == recipe


@pytest.mark.parametrize(("recipe", "other_class"), [(DETECTOR, ClassificationRecipe), (DIGITS, DetectionRecipe)])
def test_rejects_the_recipe_of_another_task(recipe, other_class):
    with pytest.raises(InputError, match=f"here must be a {other_class.task} recipe, got a {recipe.task} recipe"):
        other_class.from_json(recipe.to_json().encode(), "here")


@pytest.mark.parametrize(
    "recipe", [replace(DETECTOR, epochs=7), replace(DIGITS, epochs=7)], ids=lambda recipe: recipe.task
)
def test_read_recipe_returns_the_type_of_its_task(recipe, tmp_path):
    path = tmp_path / "recipe.json"
    path.write_text(recipe.to_json())
    assert read_recipe(path) == recipe


def test_recipe_without_a_task_is_for_classification(tmp_path):
    # recipe.json was written without a task when classification was the only one
    fields = json.loads(DIGITS.to_json())
    del fields["task"]
    (tmp_path / "recipe.json").write_text(json.dumps(fields))
    assert read_recipe(tmp_path / "recipe.json") == DIGITS


@pytest.mark.parametrize("task", ["depth", ["detection"], None])
def test_rejects_a_recipe_of_an_unknown_task(task, tmp_path):
    (tmp_path / "recipe.json").write_text(json.dumps({"task": task}))
    with pytest.raises(InputError, match=r"task in .* must be one of classification, detection, segmentation, got"):
        read_recipe(tmp_path / "recipe.json")
