"""Options from the command line, by tyro; what a person got wrong is said in one sentence."""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import tyro

from lambdanets.cli.option_types import RULES
from lambdanets.errors import InputError, nearest

Options = TypeVar("Options")


def parse(options: type[Options], arguments: list[str], *, description: str, prog: str, **more: Any) -> Options:
    """A dataclass of options from arguments. Raises InputError for an unknown option and for a value that is wrong.

    prog: the command; words in brackets at its end are for its line of usage alone. more: what else tyro.cli takes,
    such as default.
    """
    command = prog.partition(" [")[0]
    with _refusals(command):
        parsed, unknown = tyro.cli(
            options,
            args=arguments,
            prog=prog,
            description=description,
            return_unknown_args=True,
            registry=RULES,
            config=(tyro.conf.PositionalMetavarFromFieldName,),
            **more,
        )
    if unknown:
        if not unknown[0].startswith("-"):
            raise InputError(f"{command} takes no argument {unknown[0]!r} here; {command} --help lists what it takes")
        given = unknown[0].partition("=")[0]
        flags = [f"--{name.replace('_', '-')}" for name in _names(parsed)]
        raise InputError(f"{command} has no option {given}{nearest(given, flags)}")
    return parsed


def _refusals(command: str) -> contextlib.AbstractContextManager[None]:
    """Turn what tyro refuses into InputError.

    tyro tells its refusals to a hook that it calls private. Where a version of it has none, or other ones, tyro prints
    its own message, and the command ends by SystemExit with the same exit code.
    """
    hook: Callable[[Callable[[Any], None]], contextlib.AbstractContextManager[None]] | None
    hook = getattr(getattr(tyro, "_errors", None), "on_parse_error", None)
    if hook is None:
        return contextlib.nullcontext()

    def refuse(event: Any) -> None:
        try:
            sentence = _sentence(event)
        except AttributeError:
            return
        raise InputError(f"{sentence}; {command} --help lists the options")

    return hook(refuse)


def _sentence(event: Any) -> str:
    """What an event of `tyro._errors` says. Raises AttributeError for one that is not known here."""
    kind = type(event).__name__
    if kind == "MissingArgs":
        missing = [_name(entry.arg) for entry in event.missing_arguments]
        return f"{' and '.join(missing)} must be given"
    if kind == "BadValue" and event.argument.is_positional():
        return f"{_name(event.argument)} must be given"
    if kind == "BadValue":
        count = event.argument.lowered.nargs
        return f"{_name(event.argument)} must have {'a value' if count == 1 else f'{count} values'}"
    if kind == "InvalidChoice":
        close = nearest(event.value, event.choices)
        return f"{_name(event.argument)} must be one of {', '.join(event.choices)}, got {event.value!r}{close}"
    if kind == "InstantiationFailure" and event.argument is None:
        return str(event.message)  # of a recipe's own checks
    if kind == "InstantiationFailure":
        return f"{_name(event.argument)} must be {event.message}"
    raise AttributeError(kind)


def _name(argument: Any) -> str:
    """An option as it is written, or an argument as the help names it."""
    return argument.lowered.metavar.strip("[]") if argument.is_positional() else argument.display_name()


def _names(options: Any) -> list[str]:
    """Fields of a dataclass, and of those within it, whose options carry no prefix."""
    names = []
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        names += _names(value) if dataclasses.is_dataclass(value) else [field.name]
    return names
