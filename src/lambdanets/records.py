"""Writes JSON files, and reads them into annotated types."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from lambdanets.bounds import convert
from lambdanets.errors import InputError, one_line
from lambdanets.files import atomic_write, encode_utf8

T = TypeVar("T")


def write_json(path: Path, content: Any, indent: int | None = 1) -> None:
    """Write JSON atomically."""
    atomic_write(path, encode_utf8(json.dumps(content, indent=indent, ensure_ascii=False) + "\n"))


def read_json(path: Path, expected_type: type[T], advice: str = "") -> T:
    """Read a file that this package wrote. Raises InputError, "path is damaged: reason; advice", if it is invalid."""
    return parse_json(path.read_bytes(), expected_type, f"{path} is damaged", advice)


def parse_json(content: bytes | str, expected_type: type[T], problem: str, advice: str = "") -> T:
    """Parse JSON into a type, as `bounds.convert` does. Raises InputError, "problem: reason; advice", if it fails."""
    with reraise_as_input_error(problem, advice):
        return convert(json.loads(content), expected_type)


@contextmanager
def reraise_as_input_error(problem: str, advice: str = "") -> Iterator[None]:
    """Convert TypeError, ValueError and RecursionError in the block to InputError, "problem: reason; advice"."""
    try:
        yield
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{problem}: {one_line(error)}{advice and f'; {advice}'}") from error
