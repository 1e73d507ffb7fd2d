"""Schedules of the learning rate."""

import math
from collections.abc import Callable

from lambdanets.training.recipe import TrainingRecipe


def make_schedule(recipe: TrainingRecipe, steps_per_epoch: int) -> Callable[[int], float]:
    """Return the learning rate factor as a function of the step: a linear warm-up, then the recipe's schedule."""
    warmup_steps = round(recipe.warmup_epochs * steps_per_epoch)
    schedule = SCHEDULES[recipe.schedule]

    def factor(step: int) -> float:
        if step < warmup_steps:
            return (step + 1) / warmup_steps
        return schedule(recipe, step, warmup_steps, steps_per_epoch)

    return factor


def cosine(recipe: TrainingRecipe, step: int, warmup_steps: int, steps_per_epoch: int) -> float:
    """From 1 after the warm-up to 0 at the last step."""
    progress = (step - warmup_steps) / max(recipe.epochs * steps_per_epoch - warmup_steps, 1)
    return 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))


def staircase(recipe: TrainingRecipe, step: int, warmup_steps: int, steps_per_epoch: int) -> float:
    """Times `decay` every `decay_epochs` after the warm-up."""
    return recipe.decay ** int((step - warmup_steps) / (recipe.decay_epochs * steps_per_epoch))


def late_steps(recipe: TrainingRecipe, step: int, warmup_steps: int, steps_per_epoch: int) -> float:
    """Times 0.1 at 90%, 95% and 97.5% of the steps."""
    return 0.1 ** sum(step >= fraction * recipe.epochs * steps_per_epoch for fraction in (0.9, 0.95, 0.975))


# by the names in `recipe.Schedule`
SCHEDULES = {"cosine": cosine, "staircase": staircase, "late_steps": late_steps}
