"""Code shared by the commands that train: recipe options, run folder, processes and error messages."""

import argparse
import contextlib
import dataclasses
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import PositiveInt

from lambdanets.cli.options import parse_all, program
from lambdanets.cli.predict import report_unreadable
from lambdanets.errors import KILLED_WORKER, InputError, is_killed_worker, is_out_of_memory, is_user_fixable
from lambdanets.folders import describe_differences
from lambdanets.records import record
from lambdanets.registry import TASKS, find
from lambdanets.signals import interruptible
from lambdanets.terminal import echo
from lambdanets.training.recipe import TrainingRecipe
from lambdanets.training.tasks import RECIPE, extended_recipe, read_recipe

# Environment variable that is set in the processes launched by --devices, which have the same arguments.
LAUNCHED = "LAMBDANETS_LAUNCHED"


@record
class TrainOptions:
    """Options of commands that train."""

    run: Path | None = None
    """Run folder; an unfinished run of the same recipe in it is resumed. By default runs/RECIPE-DATE-TIME."""
    resume: Path | None = None
    """Run folder of an unfinished run to resume, with its own recipe; with --data if its data was moved."""
    devices: PositiveInt | None = None
    """Number of GPUs, or of processes on the CPU, on this machine; 1 by default. Use torchrun for several machines."""
    quicktest: bool = False
    """Train a small version of the recipe on scanned digits, in less than a minute on two cores."""


class TrainCommand(NamedTuple):
    """A parsed command that trains.

    words: the command, such as ["detect", "train"]. arguments: the arguments after it. options: an instance of
    `TrainOptions` or a subclass. name: name of the recipe.
    """

    words: list[str]
    arguments: list[str]
    options: Any
    recipe: Any
    name: str


def parse_with_recipe(options: type[Any], recipe: TrainingRecipe, arguments: list[str], **texts: str) -> list[Any]:
    """Parse options of a command and of its recipe; model options are merged into those of the recipe.

    If another model is given, options of the recipe that it does not have are dropped.
    """
    defaults = (options, dataclasses.replace(recipe, model_options={}))
    parsed, changed = parse_all(defaults, arguments, **texts)
    merged = _options_for(changed.model, recipe) | changed.model_options
    return [parsed, dataclasses.replace(changed, model_options=merged)]


def _options_for(model: str, recipe: TrainingRecipe) -> dict[str, Any]:
    """Return the recipe's model options that a model has.

    Options of a model of this package are dropped for others. The arguments of models of timm are not known, so timm
    checks options from one of them for another.
    """
    if model == recipe.model or not recipe.model_options:
        return recipe.model_options
    from lambdanets.models.factory import constructor_arguments

    known = constructor_arguments(model)
    if not known and not constructor_arguments(recipe.model):
        return recipe.model_options
    return {name: value for name, value in recipe.model_options.items() if name in known}


def parse_train_command(
    recipe_class: type[TrainingRecipe],
    arguments: list[str],
    summary: str,
    options_type: type[TrainOptions] = TrainOptions,
) -> TrainCommand:
    """Parse [RECIPE] [--OPTION VALUE ...]. The default recipe is digits.

    summary: first sentence of the help, without the period.

    With --resume the run's own recipe is the default. Raises InputError for options that differ from
    it, except for fields in `CHANGEABLE`, such as the path of moved data.
    """
    from lambdanets.recipes import find_recipe, list_recipes

    command = TASKS[recipe_class.task].command
    has_recipe = bool(arguments) and not arguments[0].startswith("-")
    name = arguments[0] if has_recipe else "digits"
    stored = _stored_recipe(arguments)
    recipe = stored if isinstance(stored, recipe_class) else find_recipe(name, recipe_class)
    words = [argument.partition("=")[0] for argument in arguments if argument.startswith("--")]
    recipe = extended_recipe(recipe, [word.removeprefix("--").replace("-", "_") for word in words])
    recipes = "\n".join(f"  {known}: {text}" for known, text in list_recipes(recipe_class).items())
    listed = f" RECIPE is a recipe below or a Python file; digits by default.\n\n{recipes}"
    options, requested = parse_with_recipe(
        options_type,
        recipe,
        arguments[1:] if has_recipe else arguments,
        prog=f"lambdanets {command} {name if has_recipe else '[RECIPE]'}",
        description=f"{summary}.{'' if has_recipe else listed}",
    )
    if options.resume is not None:
        if has_recipe or options.run is not None:
            raise InputError("--resume uses the run's own recipe; remove the recipe and --run")
        fixed = [each.without_changeable_fields().fields() for each in (recipe, requested)]
        differing = describe_differences(*fixed)
        if differing and recipe is stored:  # otherwise the folder is rejected later
            raise InputError(f"--resume uses the run's own recipe, which has {differing}; remove these options")
    return TrainCommand(command.split(), arguments, options, requested, name)


def _stored_recipe(arguments: list[str]) -> TrainingRecipe | None:
    """Return the recipe of the run of --resume; None without this option, or if there is no such run."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--resume", type=Path)
    with contextlib.suppress(argparse.ArgumentError):  # `parse_all` reports it
        folder = parser.parse_known_args(arguments)[0].resume
        if folder is not None and (folder / RECIPE).is_file():
            return read_recipe(folder / RECIPE)
    return None


def train_and_report(
    command: TrainCommand,
    figures: Mapping[str, str],
    print_scores: Callable[[dict[str, Any]], None],
) -> int:
    """Train, print the result, and return the exit code.

    figures: title and file name of the figures of a run. print_scores: prints the scores of a result.
    """
    outcome = _train(command)
    if isinstance(outcome, int):
        return outcome
    result, folder = outcome
    if result:  # on rank 0
        report_unreadable(result["unreadable"])
        paths = {**figures, "curves": "curves.png", "weights": "weights.safetensors"}
        width = max(map(len, paths)) + 1
        echo(
            f"{result['model_name']}, {result['parameters']:,} parameters, on {result['data']}",
            f"trained {result['epochs']} epochs in {result['seconds']:.0f} s, "
            f"{result['images_per_second']:.1f} images/s",
            *(f"{f'{title}:':<{width}} {folder / file}" for title, file in paths.items()),
        )
        print_scores(result)
    return 0


@contextlib.contextmanager
def report_errors(command: str, started: Path) -> Iterator[None]:
    """Report errors that stop training and, if the file `started` exists, the command that resumes it."""
    from lambdanets.training.callbacks import Interrupted
    from lambdanets.training.distributed import get_world

    try:
        with interruptible():
            yield
    except (Interrupted, KeyboardInterrupt):
        if get_world().is_rank_zero:
            echo(f"stopped{f'; resume with: {command}' if started.is_file() else ''}", file=sys.stderr)
        raise KeyboardInterrupt from None
    except OSError as error:
        if not is_user_fixable(error):
            raise
        has_checkpoint = (started.parent / "checkpoints" / "last.ckpt").is_file()
        checkpoint = "; the last checkpoint is intact" if has_checkpoint else ""
        advice = f"; once fixed, resume with: {command}" if started.is_file() else ""
        raise InputError(f"{error.filename or 'the run'}: {error.strerror or error}{checkpoint}{advice}") from error
    except (MemoryError, RuntimeError) as error:
        if is_killed_worker(error):
            advice = f"free memory, then resume with: {command}" if started.is_file() else "use fewer --workers"
            raise InputError(f"{KILLED_WORKER}; {advice}") from error
        if not is_out_of_memory(error):
            raise
        raise InputError(
            "out of memory; run the same command with a smaller --micro-batch, or choose a smaller model"
        ) from error


def _train(command: TrainCommand) -> tuple[dict[str, Any], Path] | int:
    """Train. Returns the result (empty on ranks other than 0) and the run folder, or an exit code with --devices."""
    options: TrainOptions = command.options
    from lambdanets.training import run
    from lambdanets.training.distributed import get_world

    if options.resume is not None:
        folder = options.resume
        _check_task(folder, command.recipe.task)
    else:
        folder = options.run or Path("runs") / f"{Path(command.name).stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    if get_world().world_size > 1 and options.resume is None and options.run is None:
        raise InputError("run must be given with several processes, the same for all; set it with --run DIR")
    if options.devices is not None and LAUNCHED not in os.environ:
        has_folder = options.run is not None or options.resume is not None
        return _launch(
            options.devices, [*command.words, *command.arguments, *([] if has_folder else ["--run", str(folder)])]
        )
    recipe = command.recipe
    if options.quicktest:
        data = folder.absolute().with_name(f"{folder.absolute().name}-data")
        if get_world().world_size > 1 or options.resume is not None:
            raise InputError("--quicktest needs a new run in one process; remove --quicktest")
        if folder.exists() and not data.exists():
            raise InputError(f"{folder} exists and is not from --quicktest; choose another folder")
        recipe = find(TASKS[recipe.task].quicktest)(recipe, data)
    with report_errors(f"{program()} {' '.join(command.words)} --resume {shlex.quote(str(folder))}", folder / RECIPE):
        start = run.resume if options.resume is not None else run.start
        result = start(folder=folder, recipe=recipe)
    return result, folder


def _check_task(folder: Path, task: str) -> None:
    if (folder / RECIPE).is_file() and (existing := read_recipe(folder / RECIPE).task) != task:
        command = f"{program()} {TASKS[existing].command} --resume {shlex.quote(str(folder))}"
        raise InputError(f"{folder} has a {existing} run; resume it with: {command}")


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
