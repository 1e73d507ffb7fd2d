"""Learning rates, as a share of the peak, by the step."""

import math
from collections.abc import Callable

from lambdanets.training.recipe import TrainingRecipe


def schedule_of(recipe: TrainingRecipe, steps_per_epoch: int) -> Callable[[int], float]:
    """Share of the recipe's learning rate at a step."""
    warmup = round(recipe.warmup_epochs * steps_per_epoch)
    if recipe.schedule == "staircase":
        length = recipe.decay_epochs * steps_per_epoch
        return lambda step: warmup_then_staircase(step, warmup, length, recipe.decay)
    total = recipe.epochs * steps_per_epoch
    if recipe.schedule == "late_steps":
        return lambda step: warmup_then_late_steps(step, warmup, total)
    return lambda step: warmup_then_cosine(step, warmup, total)


def warmup_then_cosine(step: int, warmup: int, total: int) -> float:
    """Linear over the warm-up, then half a cosine to 0 at the end."""
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(total - warmup, 1)
    return 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))


def warmup_then_staircase(step: int, warmup: int, length: float, decay: float) -> float:
    """Linear over the warm-up, then times decay after every so many steps from there."""
    return (step + 1) / warmup if step < warmup else decay ** int((step - warmup) / length)


def warmup_then_late_steps(step: int, warmup: int, total: int) -> float:
    """Linear over the warm-up, then 1, and a tenth of it after 90%, 95% and 97.5% of the steps each."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.1 ** sum(step >= share * total for share in (0.9, 0.95, 0.975))
