"""What a field of a recipe may be: its type and its range, checked in one place and named in one sentence."""

import dataclasses
import functools
import math
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from lambdanets.errors import InputError


@dataclasses.dataclass(frozen=True)
class Range:
    """Numbers from `least` to `most`, or above and below them. None: no bound on that side."""

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None

    def holds(self, value: float) -> bool:
        """Whether a number lies in the range."""
        return (
            (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        words = {"at least": self.least, "above": self.above, "at most": self.most, "below": self.below}
        return " and ".join(f"{word} {bound:,}" for word, bound in words.items() if bound is not None)


WORKERS = Range(0, 1024)
# Less holds out no image of most sets, more leaves none to train on.
VALIDATION_SHARE = Range(0.001, 0.9)


@functools.cache
def types_of_fields(kind: type) -> dict[str, Any]:
    """The annotated types of a dataclass's fields."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def check(name: str, value: Any, annotation: Any, bounds: Range | None = None) -> None:
    """Raise InputError unless a value is of an annotated type and, where it is a number, in its range."""
    numbers = value if isinstance(value, tuple) else (value,)
    if fits(value, annotation) and (
        bounds is None or all(number is None or bounds.holds(number) for number in numbers)
    ):
        return
    expected = expected_of(annotation) + (f", {bounds}" if bounds else "")
    raise InputError(f"{name} must be {expected}, got {value!r}")


def expected_of(annotation: Any) -> str:
    """An annotated type in words."""
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
        return "names with a number, a text, True or False each"
    return {int: "a whole number", float: "a finite number", bool: "True or False", type(None): "None"}.get(
        annotation, "a text"
    )


def fits(value: Any, annotation: Any) -> bool:
    """Whether a value is of an annotated type: plain classes, None, Literal, unions, tuples and dicts of such.

    A whole number fits where a float is wanted, True and False fit no number, and floats must be finite.
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
