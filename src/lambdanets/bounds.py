"""Checks values against annotated types and ranges, with readable error messages."""

import contextlib
import dataclasses
import functools
import math
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from lambdanets.errors import InputError


@dataclasses.dataclass(frozen=True)
class Range:
    """A range of numbers.

    minimum, maximum: inclusive bounds. above, below: exclusive bounds. None: no bound.
    """

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


WORKERS_RANGE = Range(0, 1024)
TILE_SIZE_RANGE = Range(16)
# With a smaller fraction most datasets would have no validation image; with a larger one too few training images.
VALIDATION_SHARE_RANGE = Range(0.001, 0.9)


_SINGULAR = {int: "an integer", float: "a finite number", bool: "True or False", str: "a string", type(None): "None"}
_PLURAL = {int: "integers", float: "finite numbers", str: "strings"}


@functools.cache
def field_types(record_type: Any) -> dict[str, Any]:
    """Return the type annotation of each field of a dataclass or TypedDict."""
    hints = get_type_hints(record_type)
    if is_typeddict(record_type):
        return hints
    return {field.name: hints[field.name] for field in dataclasses.fields(record_type)}


def check(name: str, value: Any, annotation: Any, bounds: Range | None = None) -> None:
    """Raise InputError unless a value has the annotated type and, if it is a number, is within the bounds."""
    convert(value, annotation, name, bounds)


def convert(value: Any, annotation: Any, name: str = "", bounds: Range | None = None) -> Any:
    """Convert a JSON value to an annotated type: objects to dataclasses or TypedDicts, lists to tuples.

    annotation: a dataclass, TypedDict, list, tuple, dict, union, Literal or other class.
    name: name of the value in error messages, such as "train[0].size"; if empty, they begin with "it".
    bounds: range of numbers.

    An int is accepted as a float, but a bool is not accepted as a number. Floats must be finite. Raises InputError if
    the value does not match.
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    prefix = f"{name}." if name else ""
    if isinstance(value, dict) and (dataclasses.is_dataclass(annotation) or is_typeddict(annotation)):
        return _convert_record(value, annotation, prefix)
    if isinstance(value, dict) and origin is dict:
        return {key: convert(item, arguments[1], f"{prefix}{key}") for key, item in value.items()}
    if isinstance(value, list | tuple) and origin in (list, tuple):
        has_fixed_length = origin is tuple and arguments[-1] is not Ellipsis
        item_types = arguments if has_fixed_length else arguments[:1] * len(value)
        has_length = len(item_types) == len(value)
        if has_length and arguments[0] not in _PLURAL:
            items = enumerate(zip(value, item_types, strict=True))
            return origin(convert(item, kind, f"{name or 'it'}[{index}]") for index, (item, kind) in items)
        if has_length and all(
            _is_instance(item, item_type, bounds) for item, item_type in zip(value, item_types, strict=True)
        ):
            return origin(value)
    for alternative in arguments if origin in (Union, UnionType) else ():
        with contextlib.suppress(InputError):
            return convert(value, alternative, name, bounds)
    if _is_instance(value, annotation, bounds):
        return value
    expected = describe_type(annotation) + (f", {bounds}" if bounds else "")
    text = repr(value)
    shortened = text if len(text) < 200 else f"{text[:150]} ... {text[-45:]}"
    raise InputError(f"{name or 'it'} must be {expected}, got {shortened}")


def _convert_record(value: dict[str, Any], record_type: Any, prefix: str) -> Any:
    """Convert a JSON object to a dataclass or TypedDict. A TypedDict keeps unknown fields.

    A dataclass may have the class attribute RANGES (field name to Range).
    """
    ranges = getattr(record_type, "RANGES", {})
    fields = () if is_typeddict(record_type) else dataclasses.fields(record_type)
    optional = {field.name for field in fields if (field.default, field.default_factory) != (dataclasses.MISSING,) * 2}
    values = {}
    for name, annotation in field_types(record_type).items():
        if name in value:
            values[name] = convert(value[name], annotation, f"{prefix}{name}", ranges.get(name))
        elif name not in optional | getattr(record_type, "__optional_keys__", set()):
            raise InputError(f"{prefix}{name} must be {describe_type(annotation)}, got nothing")
    return record_type(**values) if fields else value | values


def _is_instance(value: Any, annotation: Any, bounds: Range | None) -> bool:
    """Whether a value matches a class, a Literal or Any and, if it is a number, is finite and within the bounds."""
    if get_origin(annotation) is Literal:
        return (type(value), value) in [(type(choice), choice) for choice in get_args(annotation)]
    if annotation in (int, float):
        is_number = isinstance(value, int if annotation is int else int | float) and not isinstance(value, bool)
        return is_number and abs(value) < math.inf and (bounds is None or bounds.contains(value))
    if annotation is Any:
        return True
    return isinstance(annotation, type) and not is_typeddict(annotation) and isinstance(value, annotation)


def describe_type(annotation: Any) -> str:
    """Describe a type annotation for error messages, such as "an integer or None"."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if origin in (Union, UnionType):
        return " or ".join(describe_type(alternative) for alternative in arguments)
    if origin in (list, tuple):
        count = f"{len(arguments)} " if origin is tuple and arguments[-1] is not Ellipsis else ""
        plural = _PLURAL.get(arguments[0])
        return f"{count}{plural}" if plural else f"a list{count and f' of {count}values'}"
    return _SINGULAR.get(annotation, "an object")
