"""Command-line options with tyro, and one-line errors for invalid ones."""

import contextlib
import dataclasses
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import tyro

from lambdanets.cli.option_groups import RULES
from lambdanets.errors import InputError, nearest_hint

Options = TypeVar("Options")


def program() -> str:
    """Return this program as it can be typed in a shell, also if its folder is not on the PATH."""
    script = Path(sys.executable).with_name("lambdanets")
    if shutil.which("lambdanets") == str(script):
        return "lambdanets"
    return shlex.quote(str(script)) if script.is_file() else f"{shlex.quote(sys.executable)} -m lambdanets"


def parse(options: type[Options], arguments: list[str], *, description: str, prog: str, **tyro_options: Any) -> Options:
    """Parse arguments into a dataclass of options. Raises InputError for unknown options and invalid values.

    prog: the command, to which a part in brackets may be appended for the usage line. tyro_options: arguments of
    tyro.cli, such as default.
    """
    command = prog.partition(" [")[0]
    with _tyro_errors(command):
        parsed, unknown = tyro.cli(
            options,
            args=arguments,
            prog=prog,
            description=description,
            return_unknown_args=True,
            registry=RULES,
            config=(tyro.conf.PositionalMetavarFromFieldName, tyro.conf.OmitArgPrefixes),
            **tyro_options,
        )
    if unknown:
        if not unknown[0].startswith("-"):
            raise InputError(f"{command} has no argument {unknown[0]!r}; {command} --help lists its arguments")
        flag = unknown[0].partition("=")[0]
        flags = [f"--{name.replace('_', '-')}" for name in _field_names(parsed)]
        raise InputError(f"{command} has no option {flag}{nearest_hint(flag, flags)}")
    return parsed


def _tyro_errors(command: str) -> contextlib.AbstractContextManager[None]:
    """Convert tyro's errors to InputError.

    This uses a private hook of tyro. In a version of tyro without the hook, or with other events, tyro prints its own
    message and raises SystemExit with the same exit code.
    """
    hook: Callable[[Callable[[Any], None]], contextlib.AbstractContextManager[None]] | None
    hook = getattr(getattr(tyro, "_errors", None), "on_parse_error", None)
    if hook is None:
        return contextlib.nullcontext()

    def on_error(event: Any) -> None:
        try:
            message = _error_message(event)
        except AttributeError:
            return
        raise InputError(f"{message}; {command} --help lists the options")

    return hook(on_error)


def _error_message(event: Any) -> str:
    """Make the error message for an event of `tyro._errors`. Raises AttributeError for an unknown event."""
    kind = type(event).__name__
    if kind == "MissingArgs":
        missing = [_display_name(entry.arg) for entry in event.missing_arguments]
        return f"{' and '.join(missing)} must be given"
    if kind == "BadValue" and event.argument.is_positional():
        return f"{_display_name(event.argument)} must be given"
    if kind == "BadValue":
        count = event.argument.lowered.nargs
        return f"{_display_name(event.argument)} must have {'a value' if count == 1 else f'{count} values'}"
    if kind == "InvalidChoice":
        hint = nearest_hint(event.value, event.choices)
        return f"{_display_name(event.argument)} must be one of {', '.join(event.choices)}, got {event.value!r}{hint}"
    if kind == "InstantiationFailure" and event.argument is None:
        return str(event.message)  # from the checks of a recipe
    if kind == "InstantiationFailure":
        return f"{_display_name(event.argument)} must be {event.message}"
    raise AttributeError(kind)


def _display_name(argument: Any) -> str:
    """Return an option such as --data, or the name of a positional argument in the help."""
    return argument.lowered.metavar.strip("[]") if argument.is_positional() else argument.display_name()


def _field_names(options: Any) -> list[str]:
    """List the fields of a dataclass, including those of nested dataclasses."""
    names = []
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        names += _field_names(value) if dataclasses.is_dataclass(value) else [field.name]
    return names
