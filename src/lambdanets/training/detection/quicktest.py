"""--quicktest: a small version of a detection recipe, on scattered digits, in less than a minute on two cores."""

import re
from dataclasses import replace
from pathlib import Path

from lambdanets.data.coco.scattered_digits import write_scattered_digits
from lambdanets.training.detection.recipe import DetectionRecipe

IMAGES, VALIDATION, BATCH, EPOCHS, LARGEST_SIDE = 8, 4, 4, 2, 64


def small(recipe: DetectionRecipe, folder: Path) -> DetectionRecipe:
    """The recipe with few and small images, the smallest backbone of its family and narrow heads.

    The images are scattered digits, written into a folder. Everything else stays: jitter, schedule, EMA, precision.
    """
    folder.mkdir(parents=True, exist_ok=True)  # marks the run as a quicktest's
    recipe = replace(
        recipe,
        model=re.sub(r"^(lambda_resnet|resnetrs)\d+(?=$|_plain$|_c4$)", r"\g<1>50", recipe.model),
        epochs=EPOCHS,
        batch_size=BATCH,
        warmup_epochs=min(recipe.warmup_epochs, 0.5),
        learning_rate=recipe.learning_rate * BATCH / recipe.batch_size,
        workers=min(recipe.workers, 1),
        checkpoint_every=2,
        image_size=min(recipe.image_size, LARGEST_SIDE),
        pyramid_channels=16,
        box_layers=(min(recipe.box_layers[0], 1), 32),
        mask_layers=min(recipe.mask_layers, 1),
        proposals=40,
        sampled_regions=16,
        detections=10,
    )
    if recipe.data == "digits":
        return replace(recipe, training_images=IMAGES)
    write_scattered_digits(folder, IMAGES, VALIDATION, 0)
    return replace(
        recipe,
        data=str(folder / "train.json"),
        images=str(folder / "train"),
        validation_data=str(folder / "val.json"),
        validation_images=str(folder / "val"),
        training_images=None,
    )
