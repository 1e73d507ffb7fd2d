"""The data of --quicktest for tasks on COCO-format annotations."""

from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from lambdanets.data.coco.scattered_digits import write_scattered_digits
from lambdanets.training.coco.recipe import CocoRecipe

TRAINING_IMAGES, VALIDATION_IMAGES = 8, 4

AnyCocoRecipe = TypeVar("AnyCocoRecipe", bound=CocoRecipe)


def with_scattered_digits(recipe: AnyCocoRecipe, folder: Path) -> AnyCocoRecipe:
    """Return the recipe with a few images of scattered digits as its data, which are written into a folder."""
    folder.mkdir(parents=True, exist_ok=True)  # shows that the run is a quicktest
    if recipe.data == "digits":
        return replace(recipe, training_images=TRAINING_IMAGES)
    write_scattered_digits(folder, TRAINING_IMAGES, VALIDATION_IMAGES, 0)
    return replace(
        recipe,
        data=str(folder / "train.json"),
        images=str(folder / "train"),
        validation_data=str(folder / "val.json"),
        validation_images=str(folder / "val"),
        training_images=None,
    )
