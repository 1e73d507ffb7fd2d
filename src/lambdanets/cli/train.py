"""`lambdanets train`."""

import dataclasses
from pathlib import Path
from typing import Any

from lambdanets.cli.image_results import report_unreadable
from lambdanets.cli.training import TrainOptions, parse_with_recipe, train
from lambdanets.errors import InputError
from lambdanets.progress import Progress
from lambdanets.terminal import echo
from lambdanets.training.recipe import Recipe


@dataclasses.dataclass(frozen=True, kw_only=True)
class Train(TrainOptions):
    """Options of train."""

    recipe: Recipe
    plan: bool = False
    """Print the steps, memory, hours, data size and read rate that training needs on --devices, without training."""


def main(arguments: list[str]) -> int:
    """Run `lambdanets train` and return its exit code."""
    from lambdanets.recipes import find_recipe, list_recipes

    has_recipe = bool(arguments) and not arguments[0].startswith("-")
    name = arguments[0] if has_recipe else "digits"
    recipe = find_recipe(name)
    recipes = "\n".join(f"  {name}: {summary}" for name, summary in list_recipes().items())
    options = parse_with_recipe(
        Train,
        recipe,
        arguments[1:] if has_recipe else arguments,
        prog=f"lambdanets train {name if has_recipe else '[RECIPE]'}",
        description=f"Train a classifier. RECIPE is a recipe below or a Python file; digits by default.\n\n{recipes}",
    )
    if options.plan:
        return _plan(options)
    from lambdanets.training.classification.quicktest import quicktest_recipe

    has_recipe_arguments = has_recipe or options.recipe != recipe
    outcome = train(
        options,
        ["train"],
        arguments,
        name=name,
        has_recipe_arguments=has_recipe_arguments,
        make_quicktest_recipe=quicktest_recipe,
    )
    if isinstance(outcome, int):
        return outcome
    result, folder = outcome
    if result:  # on rank 0
        _report(result, folder)
    return 0


def _plan(options: Train) -> int:
    from lambdanets.training.classification.plan import plan
    from lambdanets.training.distributed import get_world

    if options.resume is not None or options.run is not None or options.quicktest:
        raise InputError("--plan trains nothing; remove --resume, --run and --quicktest")
    with Progress("planning"):
        lines = plan(options.recipe, options.devices or get_world().world_size).format_lines()
    echo(*lines)
    return 0


def _report(result: dict[str, Any], folder: Path) -> None:
    report_unreadable(result["unreadable"])
    echo(
        f"{result['model_name']}, {result['parameters']:,} parameters, on {result['data']}",
        f"trained {result['epochs']} epochs in {result['seconds']:.0f} s, {result['images_per_second']:.0f} images/s",
        f"predictions: {folder / 'predictions.png'}",
        f"curves:      {folder / 'curves.png'}",
        f"weights:     {folder / 'weights.safetensors'}",
        f"top-1 {result['top1']:.4f}",
    )
