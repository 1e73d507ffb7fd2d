"""--dry-run: checks a recipe as training does, and times a few steps."""

import timeit
from datetime import timedelta

from lambdanets.data.image_search import describe_classes, describe_left_out
from lambdanets.device import best_device
from lambdanets.provenance import hardware
from lambdanets.training.distributed import process_group
from lambdanets.training.micro_batches import Trial
from lambdanets.training.recipe import TrainingRecipe
from lambdanets.training.run import PreparedRun, prepare, resolve_recipe

TIMED_STEPS = 3
MAX_IMAGES_ON_CPU = 8  # more do not take less time per image


def dry_run(recipe: TrainingRecipe) -> list[str]:
    """Describe the data, steps, micro-batches and time of a run, in one line each. Writes no files.

    Without data loading, optimizer and validation, and with the largest images. Raises InputError
    where training would.
    """
    with process_group() as world:
        prepared = prepare(resolve_recipe(recipe), world)
        task, recipe, steps = prepared.task, prepared.recipe, prepared.training.steps_per_epoch
        images_per_step = sum(recipe.step_sizes(len(task.training)))
        accumulation = prepared.batch_slice.accumulation_steps
        micro_batch = -(-images_per_step // (world.world_size * accumulation))
        seconds = micro_batch * accumulation * _seconds_per_image(prepared, micro_batch)
        machine = hardware()
        device = machine["gpu"] or f"{machine['processor']}, {machine['threads']} threads"
        parameters = sum(parameter.numel() for parameter in task.model.parameters())
        ranks = f" on each of {world.world_size} ranks" if world.world_size > 1 else ""
        rows = {
            "data": f"{len(task.training):,} training and {len(task.validation):,} validation images ({task.source})",
            "model": f"{recipe.model}, {parameters / 1e6:.1f} M parameters",
            "steps": f"{steps:,} per epoch, {steps * recipe.epochs:,} in {recipe.epochs} epochs; "
            f"{images_per_step:,} images per step",
            "memory": f"micro-batches of {micro_batch} images fit, {accumulation} per step{ranks}",
            "speed": f"{1000 * seconds:,.0f} ms per step with the largest image ({device}, {recipe.precision})",
            "time": f"{timedelta(seconds=round(seconds * steps * recipe.epochs))} without data loading and validation",
        }
        described = (describe_classes(task.classes), describe_left_out(task.left_out))
        return [*described, *(f"{name:<8}{text}" for name, text in rows.items())]


def _seconds_per_image(prepared: PreparedRun, micro_batch: int) -> float:
    """The time per image of forward and backward passes."""
    device = best_device()
    size = micro_batch if device.type == "cuda" else min(micro_batch, MAX_IMAGES_ON_CPU)
    trial = Trial(prepared.task, prepared.recipe, device)
    trial.step(size)  # the first one prepares kernels
    return timeit.timeit(lambda: trial.step(size), number=TIMED_STEPS) / TIMED_STEPS / size
