"""Shared by the commands that train: recipe options and error messages."""

import contextlib
import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lambdanets.cli.options import parse_all
from lambdanets.errors import KILLED_WORKER, InputError, is_killed_worker, is_out_of_memory, is_user_fixable
from lambdanets.signals import uninterrupted
from lambdanets.terminal import echo
from lambdanets.training.recipe import TrainingRecipe


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


@contextlib.contextmanager
def report_errors(command: str, started: Path) -> Iterator[None]:
    """Report errors that stop training and, if the file `started` exists, the command that resumes it."""
    from lambdanets.training.callbacks import Interrupted
    from lambdanets.training.distributed import get_world

    try:
        with uninterrupted():
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
