"""--quicktest: trains a small version of a recipe, in less than a minute on two CPU cores."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from lambdanets.training.recipe import TrainingRecipe, task_class

BATCH_SIZE, EPOCHS = 4, 2


def quicktest_recipe(recipe: TrainingRecipe, folder: Path) -> Any:
    """Return the recipe with few epochs and a small batch, and what its task makes smaller.

    Augmentation, schedule, EMA, precision, hold-out and early stopping are those of the recipe. Data and initial
    weights are written into the folder, which shows that the run is a quicktest.
    """
    folder.mkdir(parents=True, exist_ok=True)
    small = replace(
        recipe,
        epochs=EPOCHS,
        batch_size=BATCH_SIZE,
        warmup_epochs=min(recipe.warmup_epochs, 0.5),
        learning_rate=recipe.learning_rate * BATCH_SIZE / recipe.batch_size,
        workers=min(recipe.workers, 1),
        checkpoint_every=2,
    )
    return task_class(recipe).quicktest(small, folder)
