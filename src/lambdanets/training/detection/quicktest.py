"""--quicktest: trains a small version of a detection recipe on scattered digits, in less than a minute on two cores."""

import re
from dataclasses import replace
from pathlib import Path

from lambdanets.training.coco.quicktest import with_scattered_digits
from lambdanets.training.detection.recipe import DetectionRecipe

BATCH_SIZE, EPOCHS, MAX_IMAGE_SIZE = 4, 2, 64


def quicktest_recipe(recipe: DetectionRecipe, folder: Path) -> DetectionRecipe:
    """Return the recipe with few small images, the smallest backbone of its family and narrow heads.

    The images are scattered digits, which are written into a folder. Jitter, schedule, EMA and precision are those of
    the recipe.
    """
    small = replace(
        recipe,
        model=re.sub(r"^(lambda_resnet|resnetrs)\d+(?=$|_plain$|_c4$)", r"\g<1>50", recipe.model),
        epochs=EPOCHS,
        batch_size=BATCH_SIZE,
        warmup_epochs=min(recipe.warmup_epochs, 0.5),
        learning_rate=recipe.learning_rate * BATCH_SIZE / recipe.batch_size,
        workers=min(recipe.workers, 1),
        checkpoint_every=2,
        image_size=min(recipe.image_size, MAX_IMAGE_SIZE),
        pyramid_channels=16,
        box_layers=(min(recipe.box_layers[0], 1), 32),
        mask_layers=min(recipe.mask_layers, 1),
        proposals=40,
        sampled_regions=16,
        max_detections=10,
    )
    return with_scattered_digits(small, folder)
