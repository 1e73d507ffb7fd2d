"""--quicktest of the tasks on COCO-format annotations: few small images, few epochs."""

from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from lambdanets.data.coco.scattered_digits import write_scattered_digits
from lambdanets.training.coco.recipe import CocoRecipe

TRAINING_IMAGES, VALIDATION_IMAGES, BATCH_SIZE, EPOCHS, MAX_IMAGE_SIZE = 8, 4, 4, 2, 64

AnyCocoRecipe = TypeVar("AnyCocoRecipe", bound=CocoRecipe)


def small_recipe(recipe: AnyCocoRecipe, folder: Path) -> AnyCocoRecipe:
    """Return the recipe with a few images of scattered digits, which are written into a folder, and few epochs.

    Augmentation, schedule, EMA and precision are those of the recipe.
    """
    folder.mkdir(parents=True, exist_ok=True)  # shows that the run is a quicktest
    recipe = replace(
        recipe,
        epochs=EPOCHS,
        batch_size=BATCH_SIZE,
        warmup_epochs=min(recipe.warmup_epochs, 0.5),
        learning_rate=recipe.learning_rate * BATCH_SIZE / recipe.batch_size,
        workers=min(recipe.workers, 1),
        checkpoint_every=2,
    )
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
