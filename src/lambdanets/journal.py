"""A journal (JSON Lines) of finished items, from which an interrupted command resumes."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from lambdanets.bounds import convert
from lambdanets.errors import InputError
from lambdanets.files import printable_bytes
from lambdanets.folders import differences
from lambdanets.records import as_input_error

SUFFIX = ".partial"


class Journal:
    """An open journal. entries: all entries; the first `resumed` are from the interrupted command."""

    def __init__(self, file: BinaryIO, entries: list[Any]) -> None:
        self._file = file
        self.entries = entries
        self.resumed = len(entries)

    def add(self, entry: Any) -> None:
        """Append an entry and flush it, so that it outlives the process."""
        self._file.write(_line(entry))
        self._file.flush()
        self.entries.append(entry)


@contextlib.contextmanager
def open_journal(path: Path, identity: dict[str, Any]) -> Iterator[Journal]:
    """Create or resume the journal at `path`; it is removed after the block, and kept if the block raises.

    identity: what the entries depend on, by name. Raises InputError if an existing file has another identity or is not
    a journal. A truncated last line is dropped. The caller holds a lock.
    """
    content = path.read_bytes() if path.is_file() else b""
    complete = content[: content.rfind(b"\n") + 1]
    entries = _read(path, complete, identity)
    try:
        with path.open("r+b" if complete else "wb") as file:
            file.truncate(len(complete))
            file.seek(len(complete))
            if not complete:
                file.write(_line(identity))
            yield Journal(file, entries)
    except BaseException:
        if not entries:
            path.unlink(missing_ok=True)
        raise
    path.unlink()


def _line(entry: Any) -> bytes:
    return printable_bytes(json.dumps(entry, ensure_ascii=False, allow_nan=False) + "\n")


def _read(path: Path, content: bytes, identity: dict[str, Any]) -> list[Any]:
    with as_input_error(f"{path} is damaged", "remove it to restart"):
        header, *entries = [json.loads(line) for line in content.splitlines()] or [identity]
        differing = differences(convert(header, dict[str, Any]), identity)
    if differing:
        raise InputError(f"{path} was started with {differing}; remove it to restart, or choose another output path")
    return entries
