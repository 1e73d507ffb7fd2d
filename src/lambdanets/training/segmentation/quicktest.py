"""--quicktest: trains a small version of a segmentation recipe on scattered digits, in less than a minute."""

from dataclasses import replace
from pathlib import Path

from lambdanets.training.coco.quicktest import with_scattered_digits
from lambdanets.training.segmentation.recipe import SegmentationRecipe

BATCH_SIZE, EPOCHS, MAX_IMAGE_SIZE = 4, 2, 64


def quicktest_recipe(recipe: SegmentationRecipe, folder: Path) -> SegmentationRecipe:
    """Return the recipe with few small images of scattered digits, which are written into a folder.

    Network, augmentation, schedule, EMA and precision are those of the recipe.
    """
    small = replace(
        recipe,
        epochs=EPOCHS,
        batch_size=BATCH_SIZE,
        warmup_epochs=min(recipe.warmup_epochs, 0.5),
        learning_rate=recipe.learning_rate * BATCH_SIZE / recipe.batch_size,
        workers=min(recipe.workers, 1),
        checkpoint_every=2,
        image_size=min(recipe.image_size, MAX_IMAGE_SIZE),
    )
    return with_scattered_digits(small, folder)
