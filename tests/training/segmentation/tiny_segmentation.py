"""A segmentation recipe that trains in about a second."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from lambdanets.tasks.recipes import SegmentationRecipe
from training.detection.tiny_detection import merge_into_two_categories, write_scattered_digits
from training.runs import SEED

CLASSES = ("background", "others", "with a loop")


def tiny_segmentation(folder: Path, **changes: Any) -> SegmentationRecipe:
    """Write scattered digits of two categories; return a recipe of 2 epochs of 2 steps with all augmentations."""
    if not (folder / "train.json").exists():
        write_scattered_digits(folder, 42)
        for split in ("train", "val"):
            merge_into_two_categories(folder / f"{split}.json")
    recipe = SegmentationRecipe(
        data=str(folder / "train.json"),
        images=str(folder / "train"),
        validation_data=str(folder / "val.json"),
        validation_images=str(folder / "val"),
        model_options={"scope": 5, "widths": [4, 8, 16], "lambda_stages": 2},
        image_size=48,
        rotate=True,
        clip_gradient=10.0,
        epochs=2,
        batch_size=2,
        warmup_epochs=0.5,
        checkpoint_every=1,
        seed=SEED,
    )
    return replace(recipe, **changes)
