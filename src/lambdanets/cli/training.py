"""What commands that train share: a recipe as options, which folder, how many processes, how a run ends."""

import contextlib
import dataclasses
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from lambdanets.cli.arguments import parse
from lambdanets.errors import InputError, is_for_user, is_out_of_memory
from lambdanets.signals import interruptible
from lambdanets.terminal import say
from lambdanets.training.recipe import TrainingRecipe
from lambdanets.training.tasks import TASKS, read_recipe

# Set for the processes that --devices starts, which are given the same arguments.
LAUNCHED = "LAMBDANETS_LAUNCHED"


def parse_with_recipe(options: type[Any], recipe: TrainingRecipe, arguments: list[str], **more: str) -> Any:
    """Options that hold a recipe, beginning from one; options of the model are added to its own, or replace them."""
    # tyro makes an option of each key that a dictionary holds already, and then takes no others
    default = options(recipe=dataclasses.replace(recipe, model_options={}))
    parsed = parse(options, arguments, default=default, **more)
    both = recipe.model_options | parsed.recipe.model_options
    return dataclasses.replace(parsed, recipe=dataclasses.replace(parsed.recipe, model_options=both))


@contextlib.contextmanager
def explained(command: str, begun: Path) -> Iterator[None]:
    """Say in a sentence what ends training early, and the command to go on with once the file `begun` is there."""
    from lambdanets.training.callbacks import Interrupted
    from lambdanets.training.processes import processes

    try:
        with interruptible():
            yield
    except (Interrupted, KeyboardInterrupt):
        if processes().is_rank_zero:
            say(f"stopped{f'; go on with: {command}' if begun.is_file() else ''}", file=sys.stderr)
        raise KeyboardInterrupt from None
    except OSError as error:
        if not is_for_user(error):
            raise
        kept = "; the last checkpoint is whole" if (begun.parent / "checkpoints" / "last.ckpt").is_file() else ""
        advice = f"; once mended, go on with: {command}" if begun.is_file() else ""
        raise InputError(f"{error.filename or 'the run'}: {error.strerror or error}{kept}{advice}") from error
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise InputError(
            "out of memory; give the same command with a smaller --micro-batch, or choose a smaller model"
        ) from error


class Options(Protocol):
    """The options that both commands have."""

    @property
    def recipe(self) -> Any:
        """The recipe with what was given changed."""

    @property
    def run(self) -> Path | None: ...
    @property
    def devices(self) -> int | None: ...
    @property
    def quicktest(self) -> bool: ...
    @property
    def resume(self) -> Path | None: ...


def train(
    options: Options,
    command: list[str],
    arguments: list[str],
    *,
    name: str,
    changed: bool,
    small: Callable[[Any, Path], TrainingRecipe],
) -> tuple[dict[str, Any], Path] | int:
    """Train as the options of a command say; the result, which only the first process has, and the run's folder.

    An exit code where the command was started in processes of its own. command: its words, which the arguments follow;
    name: of the recipe; changed: whether it was named, or a field of it given. small: makes a quicktest's recipe.
    """
    _check_devices(options.devices)
    from lambdanets.training import run
    from lambdanets.training.processes import processes

    if options.resume is not None:
        if changed or options.run is not None:
            raise InputError("--resume goes on by the run's own recipe; give no recipe, field or --run beside it")
        folder = options.resume
        _check_task(folder, options.recipe.task)
    else:
        folder = options.run or Path("runs") / f"{Path(name).stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    if processes().world_size > 1 and options.resume is None and options.run is None:
        raise InputError("several processes need --run DIR, the same for all of them")
    if options.devices is not None and LAUNCHED not in os.environ:
        named = options.run is not None or options.resume is not None
        return _launch(options.devices, [*command, *arguments, *([] if named else ["--run", str(folder)])])
    recipe = options.recipe
    if options.quicktest:
        beside = folder.with_name(f"{folder.name}-data")
        if processes().world_size > 1 or options.resume is not None:
            raise InputError("--quicktest is for one process, and for a new run; leave it out")
        if folder.exists() and not beside.exists():
            raise InputError(f"{folder} exists and is no quicktest's; name another folder")
        recipe = small(recipe, beside)
    with explained(f"lambdanets {' '.join(command)} --resume {shlex.quote(str(folder))}", folder / run.RECIPE):
        result = run.resume(folder) if options.resume is not None else run.start(recipe, folder)
    return result, folder


def _check_task(folder: Path, task: str) -> None:
    from lambdanets.training.run import RECIPE

    if (folder / RECIPE).is_file() and (there := read_recipe(folder / RECIPE).task) != task:
        command = f"lambdanets {TASKS[there].command}"
        raise InputError(f"{folder} is the folder of a run of {there}; resume it with: {command} --resume {folder}")


def _launch(devices: int, command: list[str]) -> int:
    """The same command in so many processes."""
    from lambdanets.training import launching
    from lambdanets.training.processes import processes

    if processes().world_size > 1:
        raise InputError("--devices starts processes, and torchrun has started these; give one or the other")
    import torch

    if torch.cuda.is_available() and devices > torch.cuda.device_count():
        raise InputError(f"devices must be at most {torch.cuda.device_count()}, the GPUs that there are, got {devices}")
    os.environ[LAUNCHED] = "1"  # the processes inherit it, and train instead of starting others
    try:
        return launching.launch(devices, command)
    finally:
        del os.environ[LAUNCHED]


def _check_devices(devices: int | None) -> None:
    if devices is not None and devices < 1:
        raise InputError(f"devices must be at least 1, got {devices}")
