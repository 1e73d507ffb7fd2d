"""What the commands that train share."""

import contextlib
import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lambdanets.arguments import parse
from lambdanets.errors import InputError
from lambdanets.training.recipe import TrainingRecipe


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
    from lambdanets.training.interruption import Interrupted
    from lambdanets.training.processes import processes

    try:
        yield
    except (Interrupted, KeyboardInterrupt):
        if processes().first:
            print(f"stopped{f'; go on with: {command}' if begun.is_file() else ''}", file=sys.stderr)
        raise KeyboardInterrupt from None
    except OSError as error:
        kept = "; the last checkpoint is whole" if (begun.parent / "checkpoints" / "last.ckpt").is_file() else ""
        advice = f"; once mended, go on with: {command}" if begun.is_file() else ""
        raise InputError(f"{error.filename or 'the run'}: {error.strerror or error}{kept}{advice}") from error
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise InputError(
            "out of memory; give the same command with a smaller --micro-batch, or choose a smaller model"
        ) from error


def is_out_of_memory(error: MemoryError | RuntimeError) -> bool:
    """Whether it says that memory ran out, Python's, a GPU's, or PyTorch's on a processor, which has no type for it."""
    import torch

    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def tell_unreadable(unreadable: list[str]) -> None:
    if unreadable:
        print(f"skipped {len(unreadable)} images that could not be read:", file=sys.stderr)
        for sentence in unreadable:
            print(f"  {sentence}", file=sys.stderr)
