"""A journal of finished items in JSON Lines, from which an interrupted command resumes."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from lambdanets.errors import InputError
from lambdanets.files import encode_utf8
from lambdanets.folders import describe_differences
from lambdanets.records import reraise_as_input_error

SUFFIX = ".partial"


class Journal:
    """An open journal. entries: all entries, of which the first `num_resumed` are from the interrupted command."""

    def __init__(self, file: BinaryIO, entries: list[Any]) -> None:
        self._file = file
        self.entries = entries
        self.num_resumed = len(entries)

    def add(self, entry: Any) -> None:
        """Append an entry and flush it, so that it is kept if the process is killed."""
        self._file.write(_encode_line(entry))
        self._file.flush()
        self.entries.append(entry)


@contextlib.contextmanager
def open_journal(path: Path, identity: dict[str, Any]) -> Iterator[Journal]:
    """Create or resume the journal at `path`. It is removed after the block, but kept if the block raises.

    identity: the options and inputs on which the entries depend, by name.

    A truncated last line is dropped. The caller must hold a lock. Raises InputError if an existing file has another
    identity or is not a journal.
    """
    content = path.read_bytes() if path.is_file() else b""
    complete = content[: content.rfind(b"\n") + 1]
    entries = _parse_entries(path, complete, identity)
    try:
        with path.open("r+b" if complete else "wb") as file:
            file.truncate(len(complete))
            file.seek(len(complete))
            if not complete:
                file.write(_encode_line(identity))
            yield Journal(file, entries)
    except BaseException:
        if not entries:
            path.unlink(missing_ok=True)
        raise
    path.unlink()


def _encode_line(entry: Any) -> bytes:
    return encode_utf8(json.dumps(entry, ensure_ascii=False, allow_nan=False) + "\n")


def _parse_entries(path: Path, content: bytes, identity: dict[str, Any]) -> list[Any]:
    with reraise_as_input_error(f"{path} is damaged", "remove it to restart"):
        header, *entries = [json.loads(line) for line in content.splitlines()] or [identity]
        differing = describe_differences(dict(header), identity)
    if differing:
        raise InputError(f"{path} was started with {differing}; remove it to restart, or choose another output path")
    return entries
