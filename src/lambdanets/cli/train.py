"""`lambdanets train`."""

import dataclasses
import time
from pathlib import Path
from typing import Any

import tyro

from lambdanets.cli.runs import explained, parse_with_recipe, tell_unreadable
from lambdanets.errors import InputError
from lambdanets.training.recipe import Recipe


@dataclasses.dataclass(frozen=True)
class Train:
    """A recipe's fields, and where the run goes."""

    recipe: tyro.conf.OmitArgPrefixes[Recipe]
    run: Path | None = None
    """Folder the run leaves: new, empty, or of an unfinished run of the same recipe, which goes on. By default
    runs/RECIPE-DATE-TIME."""
    quicktest: bool = False
    """Train the recipe made small, on scanned digits, in less than a minute on two cores."""
    resume: Path | None = None
    """Folder of an unfinished run to go on with, by the recipe it was started with."""


def main(arguments: list[str]) -> int:
    """Train by a recipe: lambdanets train [RECIPE] [--run DIR] [--FIELD VALUE ...], or --resume DIR."""
    from lambdanets.recipes import find_recipe, list_recipes

    named = bool(arguments) and not arguments[0].startswith("-")
    name = arguments[0] if named else "digits"
    recipe = find_recipe(name)
    recipes = "\n".join(f"  {name}: {promise}" for name, promise in list_recipes().items())
    options = parse_with_recipe(
        Train,
        recipe,
        arguments[1:] if named else arguments,
        prog=f"lambdanets train {name}",
        description=f"Train by a recipe, named first (digits if none is), or by a Python file of one.\n\n{recipes}",
    )
    from lambdanets.training import run

    if options.resume is not None:
        if named or options.recipe != recipe or options.run is not None:
            raise InputError("--resume goes on by the run's own recipe; give no recipe, field or --run beside it")
        folder = options.resume
    else:
        folder = options.run or Path("runs") / f"{Path(name).stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    recipe = options.recipe
    if options.quicktest:
        from lambdanets.training.quicktest import small

        recipe = small(recipe, folder.with_name(f"{folder.name}-data"))
    with explained(f"lambdanets train --resume {folder}", folder / run.RECIPE):
        result = run.resume(folder) if options.resume is not None else run.start(recipe, folder)
    if result:  # the first process's
        _report(result, folder)
    return 0


def _report(result: dict[str, Any], folder: Path) -> None:
    tell_unreadable(result["unreadable"])
    print(f"{result['model_name']}, {result['parameters']:,} parameters, on {result['data']}")
    print(f"trained {result['epochs']} epochs in {result['seconds']:.0f} s, {result['images_per_second']:.0f} images/s")
    print(f"what it got right and wrong: {folder / 'predictions.png'}")
    print(f"curves:                      {folder / 'curves.png'}")
    print(f"weights:                     {folder / 'weights.safetensors'}")
    print(f"top-1 {result['top1']:.4f}")
