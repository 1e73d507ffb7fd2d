"""`lambdanets train`: trains a recipe of any task."""

import argparse
import contextlib
import os
import shlex
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import PositiveInt

from lambdanets.cli.options import program
from lambdanets.cli.predict import report_unreadable
from lambdanets.cli.training import parse_with_recipe, report_errors
from lambdanets.errors import InputError, explain_missing_extras
from lambdanets.files import RECIPE
from lambdanets.progress import Progress
from lambdanets.records import record
from lambdanets.registry import TASKS
from lambdanets.terminal import echo
from lambdanets.training.recipe import TrainingRecipe, extended_recipe, read_recipe, task_class
from lambdanets.work import describe_differences

# Environment variable that is set in the processes launched by --devices, which have the same arguments.
LAUNCHED = "LAMBDANETS_LAUNCHED"


@record
class TrainOptions:
    """Options of train."""

    run: Path | None = None
    """Run folder; an unfinished run of the same recipe in it is resumed. By default runs/RECIPE-DATE-TIME."""
    resume: Path | None = None
    """Run folder of an unfinished run to resume, with its own recipe; with --data if its data was moved."""
    devices: PositiveInt | None = None
    """Number of GPUs, or of processes on the CPU, on this machine; 1 by default. Use torchrun for several machines."""
    quicktest: bool = False
    """Train a small version of the recipe on scanned digits, in less than a minute on two cores."""
    dry_run: bool = False
    """Check the recipe and its data; print images, steps, micro-batches and milliseconds per step, without training."""


class TrainCommand(NamedTuple):
    """A parsed command. arguments: those after `train`. name: name of the recipe."""

    arguments: list[str]
    options: TrainOptions
    recipe: Any
    name: str


def main(arguments: list[str]) -> int:
    """Run `lambdanets train` and return its exit code."""
    command = parse_train_command(arguments)
    with explain_missing_extras(TASKS[command.recipe.task].extra):
        outcome = _dry_run(command) if command.options.dry_run else _train(command)
    if isinstance(outcome, int):
        return outcome
    result, folder = outcome
    if result:  # on rank 0
        report_unreadable(result["unreadable"])
        echo(
            f"{result['model_name']}, {result['parameters']:,} parameters, on {result['data']}",
            f"trained {result['epochs']} epochs in {result['seconds']:.0f} s, "
            f"{result['images_per_second']:.1f} images/s",
            f"weights: {folder / 'weights.safetensors'}",
            *(f"{file.stem.replace('_', ' ')}: {file}" for file in sorted(folder.glob("*.png"))),
            *(["a quick test: scores of so few steps mean nothing"] if command.options.quicktest else []),
            *result["summary"],
        )
    return 0


def parse_train_command(arguments: list[str]) -> TrainCommand:
    """Parse [RECIPE] [--OPTION VALUE ...]. The default recipe is digits.

    With --resume the run's own recipe is the default. Raises InputError for options that differ from
    it, except for fields in `CHANGEABLE`, such as the path of moved data.
    """
    from lambdanets.recipes import find_recipe

    has_recipe = bool(arguments) and not arguments[0].startswith("-")
    name = arguments[0] if has_recipe else "digits"
    given = find_recipe(name)  # a file may register the task of the run
    stored = _stored_recipe(arguments)
    recipe = given if stored is None else stored
    words = [argument.partition("=")[0] for argument in arguments if argument.startswith("--")]
    recipe = extended_recipe(recipe, [word.removeprefix("--").replace("-", "_") for word in words])
    parse = partial(
        parse_with_recipe,
        TrainOptions,
        arguments=arguments[1:] if has_recipe else arguments,
        prog=f"lambdanets train {name if has_recipe else '[RECIPE]'}",
        description=f"Train a model for {recipe.task}." if has_recipe else _describe_recipes(),
    )
    options, requested = parse(recipe)
    if not recipe.model and requested.weights and options.resume is None:
        with explain_missing_extras(TASKS[recipe.task].extra):
            # what the weights determine is the default of the options
            options, requested = parse(task_class(recipe).resolve(replace(recipe, weights=requested.weights)))
    if options.resume is not None:
        if (has_recipe and not name.endswith(".py")) or options.run is not None:
            raise InputError("--resume uses the run's own recipe; remove the recipe and --run")
        fixed = [each.without_changeable_fields().fields() for each in (recipe, requested)]
        differing = describe_differences(*fixed)
        if differing and recipe is stored:  # otherwise the folder is rejected later
            raise InputError(f"{differing}, since --resume uses the run's own recipe; remove these options")
    return TrainCommand(arguments, options, requested, name)


def _describe_recipes() -> str:
    from lambdanets.recipes import list_recipes

    lines = ["Train a model. RECIPE is a recipe below or a Python file; digits by default, whose options are below."]
    for task in TASKS:
        if recipes := list_recipes(task):
            lines += ["", f"{task}:", *(f"  {name}: {text}" for name, text in recipes.items())]
    return "\n".join([*lines, "", "lambdanets train RECIPE --help lists the options of its task."])


def _stored_recipe(arguments: list[str]) -> TrainingRecipe | None:
    """Return the recipe of the run of --resume; None without this option, or if there is no such run."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--resume", type=Path)
    with contextlib.suppress(argparse.ArgumentError):  # `parse_all` reports it
        folder = parser.parse_known_args(arguments)[0].resume
        if folder is not None and (folder / RECIPE).is_file():
            return read_recipe(folder / RECIPE)
    return None


def _train(command: TrainCommand) -> tuple[dict[str, Any], Path] | int:
    """Train. Returns the result (empty on ranks other than 0) and the run folder, or an exit code with --devices."""
    options = command.options
    from lambdanets.training import run
    from lambdanets.training.distributed import get_world

    default = Path("runs") / f"{Path(command.name).stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder = options.resume or options.run or default
    if get_world().world_size > 1 and options.resume is None and options.run is None:
        raise InputError("run must be given with several processes, the same for all; set it with --run DIR")
    if options.devices is not None and LAUNCHED not in os.environ:
        has_folder = options.run is not None or options.resume is not None
        return _launch(options.devices, ["train", *command.arguments, *([] if has_folder else ["--run", str(folder)])])
    recipe = command.recipe
    if options.quicktest:
        data = folder.absolute().with_name(f"{folder.absolute().name}-data")
        if get_world().world_size > 1 or options.resume is not None:
            raise InputError("--quicktest needs a new run in one process; remove --quicktest")
        if folder.exists() and not data.exists():
            raise InputError(f"{folder} exists and is not from --quicktest; choose another folder")
        recipe = task_class(recipe).quicktest(recipe, data)
    file = f"{shlex.quote(command.name)} " if command.name.endswith(".py") else ""
    with report_errors(f"{program()} train {file}--resume {shlex.quote(str(folder))}", folder / RECIPE):
        start = run.resume if options.resume is not None else run.start
        result = start(folder=folder, recipe=recipe)
    return result, folder


def _dry_run(command: TrainCommand) -> int:
    options = command.options
    given = [name for name in ("resume", "quicktest") if getattr(options, name)]
    if given:
        raise InputError(f"--dry-run trains nothing; remove --{' and --'.join(given)}")
    if options.devices is not None and LAUNCHED not in os.environ:
        return _launch(options.devices, ["train", *command.arguments])
    from lambdanets.training.distributed import get_world
    from lambdanets.training.dry_run import dry_run

    with Progress("timing"):
        lines = dry_run(command.recipe)
    if get_world().is_rank_zero:
        echo(*lines)
    return 0


def _launch(devices: int, command: list[str]) -> int:
    """Launch the command in one process per device."""
    from lambdanets.training import launching
    from lambdanets.training.distributed import get_world

    if get_world().world_size > 1:
        raise InputError("--devices launches processes, which torchrun has done already; use one of them")
    import torch

    if torch.cuda.is_available() and devices > torch.cuda.device_count():
        raise InputError(f"devices must be at most {torch.cuda.device_count()}, the number of GPUs, got {devices}")
    os.environ[LAUNCHED] = "1"  # inherited by the launched processes, which train
    try:
        return launching.launch(devices, command)
    finally:
        del os.environ[LAUNCHED]
