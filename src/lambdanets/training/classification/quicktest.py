"""--quicktest: trains a small version of a recipe on scanned digits, in less than a minute on two CPU cores."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from lambdanets.data.datasets import open_splits, subset
from lambdanets.data.pseudo_labels.selection import select
from lambdanets.data.shards.writing import write_shards
from lambdanets.models.weights import WEIGHTS, save_weights
from lambdanets.training.classification.model import build_model, make_model_card
from lambdanets.training.classification.recipe import ClassificationRecipe
from lambdanets.training.pseudo_labeling import label_shards

BATCH_SIZE, EPOCHS, IMAGES, MAX_IMAGE_SIZE = 4, 2, 12, 32


def quicktest_recipe(recipe: ClassificationRecipe, folder: Path) -> ClassificationRecipe:
    """Return the recipe with few small images and the smallest model of its family; write its data into a folder.

    The data are digits in shards, or the built-in digits if the recipe uses them. Initial weights and the teacher of
    pseudo-labels are random. Augmentation, schedule, EMA, hold-out and early stopping are those of the recipe.
    """
    folder.mkdir(parents=True, exist_ok=True)
    changes: dict[str, Any] = {
        "model": re.sub(r"^lambda_resnet\d+$", "lambda_resnet50", recipe.model),
        "image_size": min(recipe.image_size, MAX_IMAGE_SIZE),
        "epochs": EPOCHS,
        "batch_size": BATCH_SIZE,
        "warmup_epochs": min(recipe.warmup_epochs, 0.5),
        "learning_rate": recipe.learning_rate * BATCH_SIZE / recipe.batch_size,
        "workers": min(recipe.workers, 1),
        "checkpoint_every": IMAGES // BATCH_SIZE - 1,  # one in each epoch; writing takes longer than a step
        "pseudo_ratio": min(max(recipe.pseudo_ratio, 0.5), 2.0),
    }
    if recipe.data == "digits":
        return replace(recipe, training_images=IMAGES, validation_share=0.02, **changes)
    splits = subset(open_splits("digits", validation_share=0.02), IMAGES, 0)
    write_shards(splits, folder / "shards", images_per_shard=IMAGES // 4)
    recipe = replace(recipe, data=str(folder / "shards"), data_root=None, **changes)
    if recipe.weights is not None:
        recipe = replace(recipe, weights=str(_write_random_weights(recipe, splits.classes, folder / "weights")))
    if recipe.pseudo_labels is not None:
        teacher = _write_random_weights(recipe, splits.classes, folder / "teacher")
        label_shards(teacher, recipe.data, folder / "labels")
        select(folder / "labels", folder / "selected", confidence=0.0, per_class=IMAGES // 4)
        recipe = replace(recipe, pseudo_labels=str(folder / "selected"), pseudo_images=recipe.data)
    return recipe


def _write_random_weights(recipe: ClassificationRecipe, classes: tuple[str, ...], folder: Path) -> Path:
    """Write random weights of the recipe's model, or of a small model if the recipe names none; return the folder.

    The weights depend only on the seed. Thus an interrupted quicktest can keep the pseudo-labels that it has written.
    """
    recipe = replace(recipe, weights=None, pseudo_labels=None, pseudo_images=None)
    recipe = replace(recipe, model=recipe.model or "lambda_resnet20_small")
    folder.mkdir(exist_ok=True)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(recipe.seed)  # torch.manual_seed would seed the GPUs as well
        model = build_model(recipe, len(classes))
    save_weights(folder / WEIGHTS, model, make_model_card(recipe, classes).to_public_json(recipe.fields()))
    return folder
