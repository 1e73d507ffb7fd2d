"""What the commands that train share."""

import contextlib
import dataclasses
import hashlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lambdanets.arguments import parse
from lambdanets.errors import InputError, is_for_user, is_out_of_memory
from lambdanets.journal import SUFFIX, Journal, open_journal
from lambdanets.signals import interruptible
from lambdanets.terminal import say
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


@contextlib.contextmanager
def images_journal(out: Path, identity: dict[str, Any], paths: Sequence[Path]) -> Iterator[Journal]:
    """The journal OUT.partial of a command that goes through images; says what is resumed, and how to resume.

    identity: what its entries depend on beside the images.
    """
    path = out.with_name(out.name + SUFFIX)
    listed = hashlib.sha256("\n".join(map(str, paths)).encode("utf-8", "surrogateescape")).hexdigest()
    journal = None
    try:
        with interruptible(), open_journal(path, identity | {"images": listed}) as journal:
            if journal.resumed:
                say(f"resuming: {journal.resumed} of {len(paths)} images are done", file=sys.stderr)
            yield journal
    except KeyboardInterrupt:
        if journal is not None and journal.entries:
            done = f"stopped after {len(journal.entries)} of {len(paths)} images, kept in {path}"
            say(f"{done}; give the same command to resume", file=sys.stderr)
        raise


def tell_unreadable(unreadable: list[str]) -> None:
    if unreadable:
        say(f"skipped {len(unreadable)} images that could not be read:", file=sys.stderr)
        say(*(f"  {sentence}" for sentence in unreadable), file=sys.stderr)
