"""Typed JSON files: read and checked against an annotated type by `bounds.convert`."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from lambdanets.bounds import convert
from lambdanets.errors import InputError, one_line
from lambdanets.files import atomic_write, printable_bytes

T = TypeVar("T")


def write_json(path: Path, content: Any, indent: int | None = 1) -> None:
    """Write JSON atomically."""
    atomic_write(path, printable_bytes(json.dumps(content, indent=indent, ensure_ascii=False) + "\n"))


def read_json(path: Path, kind: type[T], advice: str = "") -> T:
    """Read a file that this package wrote. Raises InputError, which ends with the advice, if it is damaged."""
    return parse_json(path.read_bytes(), kind, f"{path} is damaged", advice)


def parse_json(content: bytes | str, kind: type[T], problem: str, advice: str = "") -> T:
    """Parse JSON into a type. Raises InputError, "problem: reason; advice", if it does not match."""
    with as_input_error(problem, advice):
        return convert(json.loads(content), kind)


@contextmanager
def as_input_error(problem: str, advice: str = "") -> Iterator[None]:
    """Convert a TypeError, ValueError or RecursionError in the block to InputError, "problem: reason; advice"."""
    try:
        yield
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{problem}: {one_line(error)}{advice and f'; {advice}'}") from error
