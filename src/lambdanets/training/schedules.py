"""Learning rates, as a share of the peak, by the step."""

import math
from collections.abc import Callable

from lambdanets.training.recipe import Recipe


def schedule_of(recipe: Recipe, steps_per_epoch: int) -> Callable[[int], float]:
    """Share of the recipe's learning rate at a step."""
    warmup = round(recipe.warmup_epochs * steps_per_epoch)
    if recipe.schedule == "staircase":
        length = recipe.decay_epochs * steps_per_epoch
        return lambda step: warmup_then_staircase(step, warmup, length, recipe.decay)
    return lambda step: warmup_then_cosine(step, warmup, recipe.epochs * steps_per_epoch)


def warmup_then_cosine(step: int, warmup: int, total: int) -> float:
    """Linear over the warm-up, then half a cosine to 0 at the end."""
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(total - warmup, 1)
    return 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))


def warmup_then_staircase(step: int, warmup: int, length: float, decay: float) -> float:
    """Linear over the warm-up, then times decay after every so many steps from there."""
    return (step + 1) / warmup if step < warmup else decay ** int((step - warmup) / length)
