"""Records: dataclasses that check their fields, and JSON files that are read into annotated types."""

import dataclasses
import functools
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast, dataclass_transform

from pydantic import AfterValidator, ConfigDict, Field, Strict, TypeAdapter, ValidationError, ValidationInfo
from pydantic.dataclasses import dataclass

from lambdanets.errors import InputError, nearest_hint, one_line
from lambdanets.files import atomic_write

T = TypeVar("T")
CONFIG = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True)

Count = Annotated[int, Field(ge=1, le=1_000_000)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]  # of NumPy
Workers = Annotated[int, Field(ge=0, le=1024)]
TileSize = Annotated[int, Field(ge=16)]
# With a smaller fraction most datasets would have no validation image; with a larger one too few training images.
ValidationShare = Annotated[float, Field(ge=0.001, le=0.9)]
Several = Annotated[tuple[T, ...], Strict(False)]  # Python code may also give a list


def _check_ascending(values: tuple[float, float], info: ValidationInfo) -> tuple[float, float]:
    if not 0 < values[0] <= values[1]:
        raise InputError(f"{info.field_name} must be two positive numbers, the smaller first, got {values}")
    return values


Range = Annotated[tuple[float, float], Strict(False), AfterValidator(_check_ascending)]
Fractions = Annotated[tuple[Fraction, Fraction], Strict(False), AfterValidator(_check_ascending)]


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field,))
def record(cls: type[T]) -> type[T]:
    """Make a frozen dataclass of a class, with keyword arguments, each of which is checked against its annotation.

    An int is accepted as a float, but no bool as a number and no text as another type. Floats must be finite. Raises
    InputError if an argument is unknown, missing or invalid, also in `dataclasses.replace`.
    """
    made: Any = dataclass(cls, frozen=True, kw_only=True, config=CONFIG)
    validate = made.__init__

    @functools.wraps(validate)
    def init(self: Any, **fields: Any) -> None:
        for name in fields.keys() - made.__dataclass_fields__.keys():
            raise InputError(f"{cls.__name__} has no field {name!r}{nearest_hint(name, made.__dataclass_fields__)}")
        try:
            validate(self, **fields)
        except ValidationError as error:
            raise InputError(first_error(error)) from None

    made.__init__ = init
    return made


def first_error(error: ValidationError, name: str = "") -> str:
    """Describe the first of pydantic's errors in one line. name: of the value, if it is not a record."""
    first = error.errors(include_url=False)[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, Exception):  # of a check of this package
        return one_line(cause)
    path = name
    for part in first["loc"]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier():  # and not an alternative of a union, such as constrained-int
            path += f".{part}" if path else part
    if first["type"] == "missing":
        return f"{path} must be given, got none"
    message = re.sub(r" after validation| or an instance of \w+$", "", re.sub(r"^\w+ should ", "must ", first["msg"]))
    if not message.startswith("must "):  # such as invalid JSON
        return f"{path}: {message}" if path else message
    value = repr(first["input"])
    return f"{path or 'it'} {message}, got {value if len(value) < 200 else f'{value[:150]} ...'}"


adapter: Callable[[Any], TypeAdapter[Any]] = functools.cache(TypeAdapter)  # validators of types that are no records


def check(name: str, value: Any, kind: Any) -> None:
    """Raise InputError unless a value has the annotated type and range. name: of the value, for the message."""
    try:
        adapter(kind).validate_python(value, strict=True)
    except ValidationError as error:
        raise InputError(first_error(error, name)) from None


def write_json(path: Path, content: Any, indent: int | None = 1) -> None:
    """Write JSON atomically."""
    atomic_write(path, json.dumps(content, indent=indent, ensure_ascii=False) + "\n")


def read_json(path: Path, kind: type[T], advice: str = "") -> T:
    """Read a file that this package wrote. Raises InputError, "path is damaged: reason; advice", if it is invalid."""
    return parse_json(path.read_bytes(), kind, f"{path} is damaged", advice)


def parse_json(content: bytes | str, kind: type[T], problem: str, advice: str = "") -> T:
    """Parse JSON into a record, another dataclass or another type. Fields that it does not have are ignored.

    Raises InputError, "problem: reason; advice", if it fails.
    """
    with reraise_as_input_error(problem, advice):
        validator: TypeAdapter[T] = adapter(cast(Any, kind))  # mypy does not see that a type is hashable
        text = content if isinstance(content, str) else content.decode()
        # surrogates, as in file names that are not UTF-8; pydantic refuses them
        if re.search(r"\\u[dD][89a-fA-F]", text):
            return validator.validate_python(json.loads(text), strict=False, extra="ignore")
        return validator.validate_json(text, strict=True, extra="ignore")


def shared_fields(source: Any, kind: type[Any]) -> dict[str, Any]:
    """Return the fields of a record that another type of record has too, as arguments for it."""
    names = (field.name for field in dataclasses.fields(kind))
    return {name: getattr(source, name) for name in names if hasattr(source, name)}


@contextmanager
def reraise_as_input_error(problem: str, advice: str = "") -> Iterator[None]:
    """Convert KeyError, TypeError, ValueError and RecursionError to InputError, "problem: reason; advice"."""
    try:
        yield
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        reason = first_error(error) if isinstance(error, ValidationError) else one_line(error)
        raise InputError(f"{problem}: {reason}{advice and f'; {advice}'}") from error
