"""--quicktest: trains a small version of a detection recipe on scattered digits, in less than a minute on two cores."""

import re
from dataclasses import replace
from pathlib import Path

from lambdanets.training.coco.quicktest import MAX_IMAGE_SIZE, small_recipe
from lambdanets.training.detection.recipe import DetectionRecipe


def quicktest_recipe(recipe: DetectionRecipe, folder: Path) -> DetectionRecipe:
    """Return the recipe with few small images, the smallest backbone of its family and narrow heads.

    The images are scattered digits, which are written into a folder. Jitter, schedule, EMA and precision are those of
    the recipe.
    """
    small = replace(
        recipe,
        model=re.sub(r"^(lambda_resnet|resnetrs)\d+(?=$|_plain$|_c4$)", r"\g<1>50", recipe.model),
        image_size=min(recipe.image_size, MAX_IMAGE_SIZE),
        pyramid_channels=16,
        box_layers=(min(recipe.box_layers[0], 1), 32),
        mask_layers=min(recipe.mask_layers, 1),
        proposals=40,
        sampled_regions=16,
        max_detections=10,
    )
    return small_recipe(small, folder)
