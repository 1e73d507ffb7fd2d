"""Writes small teachers, their pseudo-labels, and selections of the labels."""

from dataclasses import replace
from pathlib import Path

import torch

from lambdanets.inference.model_card import ClassifierCard, make_card
from lambdanets.models.weights import WEIGHTS, save_weights
from lambdanets.recipes.digits import recipe as DIGITS
from lambdanets.tasks.recipes import ClassificationRecipe
from lambdanets.training.initial_weights import build_model
from lambdanets_lab.pseudo.labeling import label_shards
from lambdanets_lab.pseudo.tables import select
from training.runs import SHALLOW

CLASSES = ("dark", "light", "red", "striped")
RECIPE = replace(DIGITS, model_options=SHALLOW, data="", channels=3, image_size=8, batch_size=6, epochs=1)


def write_teacher(
    folder: Path, classes: tuple[str, ...] = CLASSES, *, seed: int = 0, recipe: ClassificationRecipe = RECIPE
) -> Path:
    """Write a random model with confident predictions into a folder, and return the folder."""
    torch.manual_seed(seed)
    model = build_model(recipe, len(classes))
    head = model.get_classifier()
    with torch.no_grad():
        head.weight.mul_(20)
    folder.mkdir()
    save_weights(folder / WEIGHTS, model, make_card(ClassifierCard, recipe, classes).without_paths().to_json())
    return folder


def write_selection(shards: Path, folder: Path, *, top: int = 2, classes: tuple[str, ...] = CLASSES, **options) -> Path:
    """Write a teacher, its labels for the shards and a selection of them into a folder; return the selection."""
    folder.mkdir()
    label_shards(write_teacher(folder / "teacher", classes), str(shards), folder / "labels", top=top)
    select(folder / "labels", folder / "selection", **{"confidence": 0.0, **options})
    return folder / "selection"
