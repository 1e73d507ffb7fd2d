"""`lambdanets train`."""

import dataclasses
from pathlib import Path
from typing import Any

import tyro

from lambdanets.cli.image_results import report_unreadable
from lambdanets.cli.training import parse_with_recipe, train
from lambdanets.errors import InputError
from lambdanets.progress import Progress
from lambdanets.terminal import say
from lambdanets.training.recipe import Recipe


@dataclasses.dataclass(frozen=True)
class Train:
    """A recipe's fields, and where the run goes."""

    recipe: tyro.conf.OmitArgPrefixes[Recipe]
    run: Path | None = None
    """Folder the run leaves: new, empty, or of an unfinished run of the same recipe, which goes on. By default
    runs/RECIPE-DATE-TIME."""
    devices: int | None = None
    """Processes to train with on this machine, each with a GPU of its own where there are some; torchrun starts more
    machines. With --plan, the devices to plan for."""
    plan: bool = False
    """Say what training would take, and train nothing: steps, memory, hours, data, and the rate to read it at."""
    quicktest: bool = False
    """Train the recipe made small, on scanned digits, in less than a minute on two cores."""
    resume: Path | None = None
    """Folder of an unfinished run to go on with, by the recipe it was started with."""


def main(arguments: list[str]) -> int:
    """Run `lambdanets train` and return its exit code."""
    from lambdanets.recipes import find_recipe, list_recipes

    named = bool(arguments) and not arguments[0].startswith("-")
    name = arguments[0] if named else "digits"
    recipe = find_recipe(name)
    recipes = "\n".join(f"  {name}: {promise}" for name, promise in list_recipes().items())
    options = parse_with_recipe(
        Train,
        recipe,
        arguments[1:] if named else arguments,
        prog=f"lambdanets train {name if named else '[RECIPE]'}",
        description=f"Train by a recipe, named first (digits if none is), or by a Python file of one.\n\n{recipes}",
    )
    if options.plan:
        return _plan(options)
    from lambdanets.training.classification.quicktest import small

    changed = named or options.recipe != recipe
    done = train(options, ["train"], arguments, name=name, changed=changed, small=small)
    if isinstance(done, int):
        return done
    if done[0]:  # the first process's
        _report(*done)
    return 0


def _plan(options: Train) -> int:
    from lambdanets.training.classification.plan import plan
    from lambdanets.training.processes import processes

    if options.resume is not None or options.run is not None or options.quicktest:
        raise InputError("--plan makes no run; give no --resume, --run or --quicktest beside it")
    with Progress("planning"):
        lines = plan(options.recipe, options.devices or processes().world_size).lines()
    say(*lines)
    return 0


def _report(result: dict[str, Any], folder: Path) -> None:
    report_unreadable(result["unreadable"])
    say(
        f"{result['model_name']}, {result['parameters']:,} parameters, on {result['data']}",
        f"trained {result['epochs']} epochs in {result['seconds']:.0f} s, {result['images_per_second']:.0f} images/s",
        f"what it got right and wrong: {folder / 'predictions.png'}",
        f"curves:                      {folder / 'curves.png'}",
        f"weights:                     {folder / 'weights.safetensors'}",
        f"top-1 {result['top1']:.4f}",
    )
