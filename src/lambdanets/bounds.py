"""Type and range checks of recipe fields, with error messages."""

import dataclasses
import functools
import math
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

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
# A smaller share holds out no image of most data sets, a larger one leaves too few to train on.
VALIDATION_SHARE = Range(0.001, 0.9)


@functools.cache
def types_of_fields(kind: type) -> dict[str, Any]:
    """The annotated types of the fields of a dataclass."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def check(name: str, value: Any, annotation: Any, bounds: Range | None = None) -> None:
    """Raise InputError unless a value has the annotated type and, for numbers, is within the bounds."""
    numbers = value if isinstance(value, tuple) else (value,)
    if fits(value, annotation) and (
        bounds is None or all(number is None or bounds.contains(number) for number in numbers)
    ):
        return
    expected = expected_of(annotation) + (f", {bounds}" if bounds else "")
    raise InputError(f"{name} must be {expected}, got {value!r}")


def expected_of(annotation: Any) -> str:
    """A description of an annotated type, for error messages."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if origin in (Union, UnionType):
        return " or ".join(expected_of(kind) for kind in arguments)
    if origin is tuple and arguments[-1] is Ellipsis:
        return "finite numbers" if arguments[0] is float else "whole numbers"
    if origin is tuple:
        return f"{len(arguments)} {'finite' if arguments[0] is float else 'whole'} numbers"
    if origin is dict:
        return "a dict of numbers, strings, True or False"
    return {int: "a whole number", float: "a finite number", bool: "True or False", type(None): "None"}.get(
        annotation, "a string"
    )


def fits(value: Any, annotation: Any) -> bool:
    """Whether a value has the annotated type: a class, None, Literal, or unions, tuples and dicts of these.

    An int matches float, a bool matches neither int nor float, and floats must be finite.
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return value in arguments and not isinstance(value, bool)
    if origin in (Union, UnionType):
        return any(fits(value, argument) for argument in arguments)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        if arguments[-1] is Ellipsis:
            return all(fits(item, arguments[0]) for item in value)
        return len(value) == len(arguments) and all(map(fits, value, arguments))
    if origin is dict:
        key, item = arguments
        return isinstance(value, dict) and all(fits(k, key) and fits(v, item) for k, v in value.items())
    if annotation is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, annotation)
