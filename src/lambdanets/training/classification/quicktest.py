"""--quicktest: trains a small version of a recipe on scanned digits, in less than a minute on two CPU cores."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from lambdanets.models.weights import WEIGHTS, save_weights
from lambdanets.training.classification.model import build_model, make_model_card
from lambdanets.training.classification.recipe import ClassificationRecipe

BATCH_SIZE, EPOCHS, IMAGES, MAX_IMAGE_SIZE = 4, 2, 12, 32


def quicktest_recipe(recipe: ClassificationRecipe, folder: Path) -> ClassificationRecipe:
    """Return the recipe with few small images and the smallest model of its family; write its data into a folder.

    The data are the built-in digits. Initial weights are random. Augmentation, schedule, EMA, hold-out and early
    stopping are those of the recipe.
    """
    folder.mkdir(parents=True, exist_ok=True)
    changes: dict[str, Any] = {
        "data": "digits",
        "data_root": None,
        "training_images": IMAGES,
        "validation_share": 0.02,
        "hold_out": min(recipe.hold_out, 0.02),
        "model": re.sub(r"^lambda_resnet\d+$", "lambda_resnet50", recipe.model),
        "image_size": min(recipe.image_size, MAX_IMAGE_SIZE),
        "epochs": EPOCHS,
        "batch_size": BATCH_SIZE,
        "warmup_epochs": min(recipe.warmup_epochs, 0.5),
        "learning_rate": recipe.learning_rate * BATCH_SIZE / recipe.batch_size,
        "workers": min(recipe.workers, 1),
        "checkpoint_every": IMAGES // BATCH_SIZE - 1,  # one in each epoch; writing takes longer than a step
    }
    recipe = replace(recipe, **changes)
    if recipe.weights is not None:
        weights = write_random_weights(recipe, tuple("0123456789"), folder / "weights")
        recipe = replace(recipe, weights=str(weights))
    return recipe


def write_random_weights(recipe: ClassificationRecipe, classes: tuple[str, ...], folder: Path) -> Path:
    """Write random weights of the recipe's model, or of a small model if the recipe names none; return the folder.

    The weights depend only on the seed. Thus an interrupted quicktest can keep what it has written.
    """
    recipe = replace(recipe, weights=None, model=recipe.model or "lambda_resnet20_small")
    folder.mkdir(exist_ok=True)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(recipe.seed)  # torch.manual_seed would seed the GPUs as well
        model = build_model(recipe, len(classes))
    save_weights(folder / WEIGHTS, model, make_model_card(recipe, classes).to_public_json(recipe.fields()))
    return folder
