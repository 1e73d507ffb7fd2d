"""A journal of finished work, one line of JSON per entry, from which an interrupted command resumes."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from lambdanets.bounds import convert
from lambdanets.errors import InputError
from lambdanets.files import printable_bytes
from lambdanets.folders import differences
from lambdanets.records import refused

SUFFIX = ".partial"


class Journal:
    """An open journal. entries: those of the interrupted command (`resumed` is their number), then the added ones."""

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

    identity: what the entries depend on, by name, for messages. Raises InputError if an existing file has another
    identity or is no journal. A truncated last line is dropped. The caller holds a lock.
    """
    content = path.read_bytes() if path.is_file() else b""
    whole = content[: content.rfind(b"\n") + 1]
    entries = _read(path, whole, identity)
    try:
        with path.open("r+b" if whole else "wb") as file:
            file.truncate(len(whole))
            file.seek(len(whole))
            if not whole:
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
    with refused(f"{path} is damaged", "remove it to start again"):
        found, *entries = [json.loads(line) for line in content.splitlines()] or [identity]
        differ = differences(convert(found, dict[str, Any]), identity)
    if differ:
        raise InputError(f"{path} was begun with {differ}; remove it to start again, or name another place")
    return entries
