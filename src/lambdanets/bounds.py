"""Types and ranges of recipe fields and records, checked in one place, with error messages."""

import contextlib
import dataclasses
import functools
import math
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from lambdanets.errors import InputError


@dataclasses.dataclass(frozen=True)
class Range:
    """Numbers from `minimum` to `maximum` inclusive, or above and below exclusive bounds. None: unbounded."""

    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    below: float | None = None

    def contains(self, value: float) -> bool:
        """Whether a number is in the range."""
        return (
            (self.minimum is None or value >= self.minimum)
            and (self.maximum is None or value <= self.maximum)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        bounds = {"at least": self.minimum, "above": self.above, "at most": self.maximum, "below": self.below}
        return " and ".join(f"{name} {bound:,}" for name, bound in bounds.items() if bound is not None)


WORKERS = Range(0, 1024)
# A smaller fraction holds out no image of most data sets; a larger one leaves too few for training.
VALIDATION_FRACTION = Range(0.001, 0.9)


_ONE = {int: "an integer", float: "a finite number", bool: "True or False", str: "a string", type(None): "None"}
_SEVERAL = {int: "integers", float: "finite numbers", str: "strings"}


@functools.cache
def types_of_fields(kind: Any) -> dict[str, Any]:
    """The annotated types of the fields of a dataclass or a TypedDict."""
    hints = get_type_hints(kind)
    return hints if is_typeddict(kind) else {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def check(name: str, value: Any, annotation: Any, bounds: Range | None = None) -> None:
    """Raise InputError unless a value is of an annotated type and, if it is a number, in its range."""
    convert(value, annotation, name, bounds)


def convert(value: Any, kind: Any, name: str = "it", bounds: Range | None = None) -> Any:
    """Convert a JSON value to an annotated type: objects to dataclasses or TypedDicts, lists to tuples.

    kind: a dataclass, TypedDict, list, tuple, dict, union, Literal or plain class. An int is accepted for a float, a
    bool for no number, and floats must be finite. bounds: range of numbers. Raises InputError for any other value.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if isinstance(value, dict) and (dataclasses.is_dataclass(kind) or is_typeddict(kind)):
        return _record(value, kind, "" if name == "it" else f"{name}.")
    if isinstance(value, dict) and origin is dict:
        return {key: convert(item, arguments[1], f"{name}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple) and origin in (list, tuple):
        kinds = arguments if origin is tuple and arguments[-1] is not Ellipsis else arguments[:1] * len(value)
        if arguments[0] not in _SEVERAL:
            return origin(convert(item, arguments[0], f"{name}[{index}]") for index, item in enumerate(value))
        if len(kinds) == len(value) and all(_fits(item, each, bounds) for item, each in zip(value, kinds, strict=True)):
            return origin(value)
    for alternative in arguments if origin in (Union, UnionType) else ():
        with contextlib.suppress(InputError):
            return convert(value, alternative, name, bounds)
    if _fits(value, kind, bounds):
        return value
    expected = expected_of(kind) + (f", {bounds}" if bounds else "")
    text = repr(value)
    raise InputError(f"{name} must be {expected}, got {text if len(text) < 200 else f'{text[:150]} ... {text[-45:]}'}")


def _record(value: dict[str, Any], kind: Any, prefix: str) -> Any:
    """A dataclass or TypedDict, with its RANGES and ALIASES of fields. A TypedDict keeps unknown fields."""
    value = {getattr(kind, "ALIASES", {}).get(name, name): item for name, item in value.items()} | value
    ranges = getattr(kind, "RANGES", {})
    fields = () if is_typeddict(kind) else dataclasses.fields(kind)
    optional = {field.name for field in fields if (field.default, field.default_factory) != (dataclasses.MISSING,) * 2}
    values = {}
    for name, annotation in types_of_fields(kind).items():
        if name in value:
            values[name] = convert(value[name], annotation, f"{prefix}{name}", ranges.get(name))
        elif name not in optional | getattr(kind, "__optional_keys__", set()):
            raise InputError(f"{prefix}{name} must be {expected_of(annotation)}, got nothing")
    return kind(**values) if fields else value | values


def _fits(value: Any, kind: Any, bounds: Range | None) -> bool:
    """Whether a value is of a class, a Literal or Any and, if it is a number, in its range."""
    if get_origin(kind) is Literal:
        return value in get_args(kind) and not isinstance(value, bool)
    if kind in (int, float):
        number = isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
        return number and abs(value) < math.inf and (bounds is None or bounds.contains(value))
    return kind is Any or (isinstance(kind, type) and not is_typeddict(kind) and isinstance(value, kind))


def expected_of(annotation: Any) -> str:
    """A description of an annotated type, for error messages."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if origin in (Union, UnionType):
        return " or ".join(expected_of(kind) for kind in arguments)
    if origin in (list, tuple) and arguments[0] in _SEVERAL:
        number = f"{len(arguments)} " if origin is tuple and arguments[-1] is not Ellipsis else ""
        return f"{number}{_SEVERAL[arguments[0]]}"
    return _ONE.get(annotation) or ("a list" if origin in (list, tuple) else "an object")
