"""Records: files of JSON whose content is of an annotated type, checked by `bounds.convert`."""

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
    """The content of a file that this package wrote. The InputError for any other ends with the advice."""
    return parse_json(path.read_bytes(), kind, f"{path} is damaged", advice)


def parse_json(content: bytes | str, kind: type[T], problem: str, advice: str = "") -> T:
    """JSON as a value of a type. Raises InputError, "problem: what does not fit; advice"."""
    with refused(problem, advice):
        return convert(json.loads(content), kind)


@contextmanager
def refused(problem: str, advice: str = "") -> Iterator[None]:
    """Raise InputError, "problem: reason; advice", for a ValueError or the like in the block."""
    try:
        yield
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{problem}: {one_line(error)}{advice and f'; {advice}'}") from error
