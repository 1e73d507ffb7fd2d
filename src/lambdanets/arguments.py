"""Options from the command line, by tyro; what a person got wrong is said in one sentence."""

import contextlib
import dataclasses
import io
import itertools
from typing import Any, TypeVar

import tyro

from lambdanets.errors import InputError, nearest

Options = TypeVar("Options")


def parse(options: type[Options], arguments: list[str], *, description: str, prog: str, **more: Any) -> Options:
    """A dataclass of options from arguments. Raises InputError for an unknown option and for a value that is wrong.

    more: what else tyro.cli takes, such as default.
    """
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parsed, unknown = tyro.cli(
                options, args=arguments, prog=prog, description=description, return_unknown_args=True, **more
            )
    except SystemExit as end:
        if not end.code:
            raise
        raise InputError(f"{_sentence(said.getvalue())}; {prog} --help says what it takes") from end
    if unknown:
        flags = [f"--{name.replace('_', '-')}" for name in _names(parsed)]
        raise InputError(f"{prog} has no option {unknown[0]}{nearest(unknown[0], flags)}")
    return parsed


def _names(options: Any) -> list[str]:
    """Fields of a dataclass, and of those within it, whose options carry no prefix."""
    names = []
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        names += _names(value) if dataclasses.is_dataclass(value) else [field.name]
    return names


def _sentence(box: str) -> str:
    """What tyro says in a box, without the box, its title and its advice."""
    lines = [line.strip("│ ") for line in box.splitlines() if line.startswith("│")]
    if not lines:  # in ASCII: a title, a line of dashes, what is said, another such line
        plain = [line.strip() for line in box.splitlines()]
        title = itertools.takewhile(lambda line: line.strip("-"), plain[1:])
        lines = plain[len([*title]) + 2 :]
    said = list(itertools.takewhile(lambda line: line.strip("─-"), lines))
    return " ".join(said).rstrip(".") or " ".join(box.split())
