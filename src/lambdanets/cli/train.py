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
    from lambdanets.training.processes import processes

    if options.resume is not None:
        if named or options.recipe != recipe or options.run is not None:
            raise InputError("--resume goes on by the run's own recipe; give no recipe, field or --run beside it")
        folder = options.resume
    else:
        folder = options.run or Path("runs") / f"{Path(name).stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    if options.plan:
        return _plan(options)
    if processes().count > 1 and options.resume is None and options.run is None:
        raise InputError("several processes need --run DIR, the same for all of them")
    if options.devices is not None:
        return _launch(options.devices, arguments, folder)
    recipe = options.recipe
    if options.quicktest:
        beside = folder.with_name(f"{folder.name}-data")
        if processes().count > 1 or options.resume is not None:
            raise InputError("--quicktest is for one process, and for a new run; leave it out")
        if folder.exists() and not beside.exists():
            raise InputError(f"{folder} exists and is no quicktest's; name another folder")
        from lambdanets.training.classification.quicktest import small

        recipe = small(recipe, beside)
    with explained(f"lambdanets train --resume {folder}", folder / run.RECIPE):
        result = run.resume(folder) if options.resume is not None else run.start(recipe, folder)
    if result:  # the first process's
        _report(result, folder)
    return 0


def _plan(options: Train) -> int:
    from lambdanets.training.classification.plan import plan
    from lambdanets.training.processes import processes

    if options.resume is not None or options.run is not None or options.quicktest:
        raise InputError("--plan makes no run; give no --resume, --run or --quicktest beside it")
    for line in plan(options.recipe, options.devices or processes().count).lines():
        print(line)
    return 0


def _launch(devices: int, arguments: list[str], folder: Path) -> int:
    """The same command in so many processes."""
    from lambdanets.training import launching
    from lambdanets.training.processes import processes

    if devices < 1:
        raise InputError(f"devices must be at least 1, got {devices}")
    if processes().count > 1:
        raise InputError("--devices starts processes, and torchrun has started these; give one or the other")
    import torch

    if torch.cuda.is_available() and devices > torch.cuda.device_count():
        raise InputError(f"devices must be at most {torch.cuda.device_count()}, the GPUs that there are, got {devices}")
    place = arguments.index("--devices") if "--devices" in arguments else None
    if place is None:
        raise InputError("--devices must stand apart from its number, as in --devices 2")
    same = arguments[:place] + arguments[place + 2 :]
    if not {"--run", "--resume"} & set(same):
        same += ["--run", str(folder)]
    return launching.launch(devices, ["train", *same])


def _report(result: dict[str, Any], folder: Path) -> None:
    tell_unreadable(result["unreadable"])
    print(f"{result['model_name']}, {result['parameters']:,} parameters, on {result['data']}")
    print(f"trained {result['epochs']} epochs in {result['seconds']:.0f} s, {result['images_per_second']:.0f} images/s")
    print(f"what it got right and wrong: {folder / 'predictions.png'}")
    print(f"curves:                      {folder / 'curves.png'}")
    print(f"weights:                     {folder / 'weights.safetensors'}")
    print(f"top-1 {result['top1']:.4f}")
