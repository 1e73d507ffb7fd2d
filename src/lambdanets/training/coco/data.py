"""Opens the training and validation data of a recipe."""

import sys
from pathlib import Path

from lambdanets.data.coco.images import AnnotatedImages, open_annotated
from lambdanets.data.coco.sets import open_digits, open_validation
from lambdanets.data.order import permutation
from lambdanets.errors import InputError
from lambdanets.records import write_json
from lambdanets.terminal import echo
from lambdanets.training.coco.recipe import CocoRecipe

PROBLEMS_FILE = "findings.json"


def open_datasets(recipe: CocoRecipe) -> tuple[AnnotatedImages, AnnotatedImages, str]:
    """Return the training data, the validation data, and a description of their source for messages.

    Raises InputError if the categories differ, if there are fewer than `training_images` images, or if one of the
    datasets has no objects.
    """
    if recipe.data == "digits":
        training, validation = open_digits()
        source = "scikit-learn's digits, scattered"
    else:
        assert recipe.images is not None
        training = open_annotated(Path(recipe.data), Path(recipe.images))
        validation = open_validation(recipe, training.annotations.categories)
        source = f"{recipe.data} and {recipe.validation_data}"
    if recipe.training_images is not None:
        if recipe.training_images > len(training):
            raise InputError(f"training_images must be at most {len(training)}, got {recipe.training_images}")
        subset = permutation(len(training), recipe.seed, 0)[: recipe.training_images]
        source = f"{source}, {len(subset)} of {len(training)} training images"
        training = training.select(sorted(subset.tolist()))
    for name, images in (("data", training), ("validation_data", validation)):
        if all(instance.crowd for image in images.annotations.images for instance in image.objects):
            raise InputError(f"{name} must have at least one object with iscrowd 0, got none: {source}")
    return training, validation, source


def write_problems(folder: Path, **splits: AnnotatedImages) -> None:
    """Write the ids of dropped annotations, by split and problem, to findings.json. If there are none, remove it."""
    ids = {split: images.problems.ids for split, images in splits.items()}
    path = folder / PROBLEMS_FILE
    if any(ids.values()):
        write_json(path, ids)
        echo(f"all dropped annotations: {path}", file=sys.stderr)
    else:
        path.unlink(missing_ok=True)
