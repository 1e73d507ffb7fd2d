"""Options of commands, made from records: argparse collects the words, pydantic converts and checks them."""

import argparse
import ast
import contextlib
import dataclasses
import inspect
import shlex
import shutil
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, NoReturn, TypeVar, get_args, get_origin

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import PydanticUndefined

from lambdanets.errors import InputError, nearest_hint
from lambdanets.records import first_error

Options = TypeVar("Options")
POSITIONAL = "positional"  # annotation of a field that is given without its name
_MODEL = "Run folder, weight file, hub folder, hf-hub:USER/NAME, or the name of a trained model, such as digits."
Model = Annotated[str, POSITIONAL, Field(description=_MODEL)]
_DEVICE = "cpu, cuda, or one GPU such as cuda:1; the GPU, if there is one, by default."
Device = Annotated[str | None, Field(description=_DEVICE)]


def program() -> str:
    """Return this program as it can be typed in a shell, also if its folder is not on the PATH."""
    if shutil.which("lambdanets") == str(Path(sys.executable).with_name("lambdanets")):
        return "lambdanets"
    return f"{shlex.quote(sys.executable)} -m lambdanets"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message.removeprefix('argument ')}; {self.prog} --help lists the options")


def parse(options: type[Options], arguments: Sequence[str], command: str) -> Options:
    """Parse the arguments of a command into a record, whose docstring describes the command in the help.

    Raises InputError for invalid ones.
    """
    description = inspect.cleandoc(options.__doc__ or "")
    return parse_all((options,), arguments, prog=f"lambdanets {command}", description=description)[0]


def parse_all(defaults: Sequence[Any], arguments: Sequence[str], *, prog: str, description: str) -> list[Any]:
    """Parse arguments into several records. Options with a name that several have are set in all of them.

    defaults: records with the default values, or types of records. prog: the command; "[...]" after it is for the help.
    """
    command, _, missing = prog.partition(" [")
    parser = _Parser(
        command, description=description, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options: dict[str, tuple[str, Any]] = {}
    positionals = [name for each in defaults for name in _add_options(parser, each, options)]
    parser.usage = " ".join([prog, *positionals, "[--OPTION VALUE ...]"]).replace("%", "%%")
    given, unknown = parser.parse_known_intermixed_args(arguments)
    if unknown and unknown[0].startswith("-"):
        flag = unknown[0].partition("=")[0]
        raise InputError(f"{command} has no option {flag}{nearest_hint(flag, (name for name, _ in options.values()))}")
    if unknown:
        advice = f"{missing[:-1]} must come before the options" if missing else f"{command} --help lists its arguments"
        raise InputError(f"{command} has no argument {unknown[0]!r}; {advice}")
    values = {name: _convert(words, *options[name]) for name, words in vars(given).items()}
    records = []
    for each in defaults:
        own = {field.name: values[field.name] for field in dataclasses.fields(each) if field.name in values}
        records.append(each(**own) if isinstance(each, type) else dataclasses.replace(each, **own))
    return records


def options_of_task(options: Any, names: Sequence[str], known: Collection[str], task: str) -> dict[str, Any]:
    """Return those of the named options of a record that are set.

    Raises InputError for one that is not known to the task of the model.
    """
    values = {name: value for name in names if (value := getattr(options, name)) is not None}
    if unknown := [f"--{name.replace('_', '-')}" for name in values if name not in known]:
        raise InputError(f"a {task} model has no option {' or '.join(unknown)}")
    return values


def _add_options(parser: argparse.ArgumentParser, default: Any, options: dict[str, tuple[str, Any]]) -> list[str]:
    """Add the fields of a record to the parser. Return the names of positional arguments for the help.

    A group of the help has the fields that a class declares first. options: gets the name in messages, and the type, of
    each field.
    """
    kind: Any = default if isinstance(default, type) else type(default)
    fields = kind.__pydantic_fields__
    positionals: list[str] = []
    for base in reversed(kind.__mro__):
        title = (base.__doc__ or "").partition("\n")[0].rstrip(".")
        group = parser if (parser.description or "").startswith(title) else parser.add_argument_group(title)
        for name in (name for name in inspect.get_annotations(base) if name in fields and name not in options):
            field = fields[name]
            inner, is_optional = _without_none(field.annotation)
            value = field.default if isinstance(default, type) else getattr(default, name)
            settings: dict[str, Any] = {"default": argparse.SUPPRESS, "help": _help(kind, name, value)}
            is_variadic = get_origin(inner) is dict or (get_origin(inner) is tuple and get_args(inner)[-1] is Ellipsis)
            is_positional = POSITIONAL in field.metadata
            shown = name.upper() if is_positional else f"--{name.replace('_', '-')}"
            options[name] = shown, Annotated[field.annotation, None, *field.metadata]  # which needs at least one
            if is_positional:
                positionals.append(f"{shown}..." if is_variadic else f"[{shown}]" if is_optional else shown)
                nargs = "*" if is_variadic else "?" if is_optional else None
                parser.add_argument(name, metavar=shown, nargs=nargs, **settings)
                continue
            settings["required"] = isinstance(default, type) and field.is_required()
            if inner is bool:
                settings["action"] = argparse.BooleanOptionalAction
            elif get_origin(inner) is Literal:
                settings["metavar"] = f"{{{','.join(map(str, get_args(inner)))}}}"
            elif is_variadic:
                settings["nargs"] = "*"
            elif get_origin(inner) is tuple:
                settings["nargs"] = len(get_args(inner))
            group.add_argument(shown, dest=name, **settings)
    return positionals


def _without_none(kind: Any) -> tuple[Any, bool]:
    """Return a type without annotations, or the first alternative of one that may be None, and whether it may."""
    is_optional = NoneType in get_args(kind)
    inner = next(each for each in get_args(kind) if each is not NoneType) if is_optional else kind
    return get_args(inner)[0] if get_origin(inner) is Annotated else inner, is_optional


def _help(kind: Any, name: str, default: Any) -> str:
    """Return the text below a field, or below that of a base class if it has none, and its default value."""
    fields = (getattr(base, "__pydantic_fields__", {}).get(name) for base in kind.__mro__)
    text = next((field.description for field in fields if field and field.description), "")
    if default not in (None, "", (), PydanticUndefined) and not isinstance(default, dict) and default is not False:
        shown = " ".join(map(str, default)) if isinstance(default, tuple) else default
        text = f"{text} (default: {shown})"
    return " ".join(text.split()).replace("%", "%%")


def _convert(words: Any, name: str, kind: Any) -> Any:
    """Convert the words of an option to its type. Model options and choices of numbers are read as in Python."""
    inner, is_optional = _without_none(get_args(kind)[0])
    several = words if isinstance(words, list) else [words]
    if "" in several:
        raise InputError(f"{name} must have a value, got ''")
    if is_optional and several in (["none"], ["None"]):
        return None
    if get_origin(inner) is dict:
        if len(words) % 2:
            raise InputError(f"{name} must be pairs of a name and a value, got {' '.join(words)!r}")
        words = dict(zip(words[::2], map(_literal, words[1::2]), strict=True))
    validator: TypeAdapter[Any] = TypeAdapter(kind, config=ConfigDict(allow_inf_nan=False))
    try:
        return validator.validate_python(words)
    except ValidationError as error:
        with contextlib.suppress(ValidationError):
            return validator.validate_python(_literal(words), strict=True)  # such as the numbers of Literal[1, 3]
        raise InputError(first_error(error, name)) from None


def _literal(word: str) -> Any:
    try:
        return ast.literal_eval(word.title() if word in ("true", "false") else word)
    except (ValueError, SyntaxError):
        return word
