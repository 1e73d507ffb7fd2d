"""--quicktest: trains a small version of a segmentation recipe on scattered digits, in less than a minute."""

from dataclasses import replace
from pathlib import Path

from lambdanets.training.coco.quicktest import MAX_IMAGE_SIZE, small_recipe
from lambdanets.training.segmentation.recipe import SegmentationRecipe


def quicktest_recipe(recipe: SegmentationRecipe, folder: Path) -> SegmentationRecipe:
    """Return the recipe with few small images of scattered digits, which are written into a folder.

    Network, augmentation, schedule, EMA and precision are those of the recipe.
    """
    return small_recipe(replace(recipe, image_size=min(recipe.image_size, MAX_IMAGE_SIZE)), folder)
