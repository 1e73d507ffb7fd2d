"""Parsing of command-line values by type, with metavars for the help.

These rules replace tyro's own, whose errors read "no type matching {None}|INT could be instantiated from ['x']".
"""

from collections.abc import Callable
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

NONE = ("none", "None")
RULES = ConstructorRegistry()


def _number(text: str, kind: type, expected: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{expected}, got {text!r}") from None


def _path(text: str) -> Path:
    if not text:  # Path("") is the current folder
        raise ValueError("a path, got ''")
    return Path(text)


def _model_option(text: str) -> bool | int | float | str:
    """Parse the value of a model option as a bool, int or float if possible, else as a string."""
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


# Type -> metavar and parser.
_SIMPLE: dict[Any, tuple[str, Callable[[str], Any]]] = {
    int: ("N", lambda text: _number(text, int, "an integer")),
    float: ("NUMBER", lambda text: _number(text, float, "a number")),
    str: ("TEXT", str),
    Path: ("PATH", _path),
}


@RULES.primitive_rule
def _primitive_spec(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Return the constructor spec of a type, or None for literals and flags, which tyro handles."""
    origin, arguments = get_origin(info.type), get_args(info.type)
    if info.type in _SIMPLE:
        metavar, parse = _SIMPLE[info.type]
        return _spec(1, metavar, lambda texts: parse(texts[0]), lambda value: [str(value)])
    if origin in (Union, UnionType) and NoneType in arguments and len(arguments) == 2:
        return _optional(_inner(next(kind for kind in arguments if kind is not NoneType), info))
    if origin is tuple and arguments[-1] is Ellipsis:
        return _repeated(_inner(arguments[0], info))
    if origin is tuple and all(kind in _SIMPLE for kind in arguments):
        parsers = [_SIMPLE[kind][1] for kind in arguments]
        return _spec(
            len(arguments),
            " ".join(_SIMPLE[kind][0] for kind in arguments),
            lambda texts: tuple(parse(text) for parse, text in zip(parsers, texts, strict=True)),
            lambda value: [str(item) for item in value],
        )
    if origin is dict:
        return _spec("*", "NAME VALUE ...", _pairs, _format_pairs)
    return None


def _inner(kind: Any, info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any]:
    spec = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(kind, info.markers))
    assert isinstance(spec, PrimitiveConstructorSpec)
    return spec


def _optional(inner: PrimitiveConstructorSpec[Any]) -> PrimitiveConstructorSpec[Any]:
    return _spec(
        inner.nargs,
        inner.metavar,
        lambda texts: None if len(texts) == 1 and texts[0] in NONE else inner.instance_from_str(texts),
        lambda value: [NONE[0]] if value is None else inner.str_from_instance(value),
        None if inner.choices is None else (*inner.choices, *NONE),
    )


def _repeated(inner: PrimitiveConstructorSpec[Any]) -> PrimitiveConstructorSpec[Any]:
    return _spec(
        "*",
        f"{inner.metavar} ...",
        lambda texts: tuple(inner.instance_from_str([text]) for text in texts),
        lambda value: [text for item in value for text in inner.str_from_instance(item)] or [NONE[0]],
        inner.choices,
    )


def _pairs(texts: list[str]) -> dict[str, Any]:
    if len(texts) % 2:
        raise ValueError(f"pairs of a name and a value, got {' '.join(texts)!r}")
    return dict(zip(texts[::2], map(_model_option, texts[1::2]), strict=True))


def _format_pairs(value: dict[str, Any]) -> list[str]:
    return [str(item) for pair in value.items() for item in pair] or [NONE[0]]


def _spec(
    nargs: Any,
    metavar: str,
    parse: Callable[[list[str]], Any],
    format_value: Callable[[Any], list[str]],
    choices: tuple[str, ...] | None = None,
) -> PrimitiveConstructorSpec[Any]:
    return PrimitiveConstructorSpec(nargs, metavar, parse, lambda value: True, format_value, choices)
