"""Output folders and files on which one process at a time works, and which an interrupted command resumes."""

import contextlib
import errno
import json
import os
import reprlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from lambdanets.errors import InputError
from lambdanets.files import encode_utf8, is_hidden
from lambdanets.records import read_json, reraise_as_input_error
from lambdanets.signals import uninterrupted

LOCK = ".lock"
PARTIAL = ".partial"  # suffix of journals
_FILES = (".csv", ".json", ".jsonl", ".md", ".png", ".safetensors", ".tar", ".txt")  # suffixes of no folder
_SHORT = reprlib.Repr()
_SHORT.maxstring = 200  # paths differ in the middle


class InUseError(InputError):
    """Another running process holds the lock."""


@contextlib.contextmanager
def locked(path: Path, subject: Path, timeout: float = 0.0) -> Iterator[None]:
    """Hold the lock file `path` within the block, for work on the folder or file `subject`. timeout: in seconds.

    The operating system holds the lock (flock) and releases it when its process ends, however it ends; across hosts,
    on a file system that supports this, such as NFS 4. Raises InUseError if another process holds it, and InputError
    if the file cannot be written.
    """
    if not path.parent.is_dir():  # filelock would create it
        raise InputError(f"{subject}: {os.strerror(errno.ENOENT)}")
    lock = FileLock(path, timeout=timeout, thread_local=False)
    with uninterrupted():
        try:
            lock.acquire()
        except Timeout:
            advice = "wait for it to end, or choose another path"
            raise InUseError(f"{subject} is in use by another process; {advice}") from None
        except OSError as error:
            raise InputError(f"{subject}: {error.strerror}") from error
        try:
            yield
        finally:
            with contextlib.suppress(PermissionError):  # filelock removes it on Windows
                path.unlink(missing_ok=True)  # after the release another process may hold it
            lock.release()


@dataclass(frozen=True)
class WorkFolder:
    """An output folder, which may be new, empty, or have unfinished or finished output of the same work.

    identity: the options and inputs on which the output depends, by name.
    file: name of the JSON file, in a folder with such output, that has the identity and perhaps more; "" if there is
        no file, so that the folder must be new or empty.
    read: reads the file, for example with the defaults of options that a later version added.

    Hidden files and empty sub-folders are ignored.
    """

    path: Path
    identity: Mapping[str, Any] = field(default_factory=dict)
    file: str = ""
    read: Callable[[Path], Any] = lambda file: read_json(file, dict[str, Any], "choose another folder")

    def is_started(self) -> bool:
        """Whether the folder has output of the same identity. Raises InputError if it has other output or files."""
        if not self.path.is_dir():
            if self.path.exists() or self.path.suffix.lower() in _FILES:
                got = "a file" if self.path.exists() else "the name of a file"
                raise InputError(f"{self.path} must be a folder, got {got}; choose another path")
            return False
        if not self.file or not (self.path / self.file).is_file():
            if foreign := sorted(entry.name for entry in self.path.iterdir() if not _is_ignored(entry)):
                advice = "choose another folder, or remove it if you do not need it"
                raise InputError(f"{self.path} is not empty, it has {foreign[0]}; {advice}")
            return False
        if self.identity:
            self.check(self.read(self.path / self.file))
        return True

    def check(self, existing: Mapping[str, Any]) -> None:
        """Raise InputError if the output in the folder, of which this is the identity, is of other work."""
        existing, expected = (json.loads(json.dumps(each)) for each in (existing, self.identity))  # without tuples
        if differing := describe_differences(existing, expected):
            raise InputError(f"{differing}, since {self.path} was started so; choose another folder")

    @contextlib.contextmanager
    def open(self, *, shared: bool = False) -> Iterator[None]:
        """Create the folder and hold its lock within the block; a new folder that is left empty is removed.

        shared: several processes work in the folder, and hold this lock only while they start, so it is acquired with a
            timeout.

        Raises InputError as `is_started` does, before the folder is created, and InUseError as `locked`.
        """
        self.is_started()
        missing = [path for path in (self.path, *self.path.parents) if not path.exists()]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"folder {self.path} cannot be created: {error.strerror}") from error
        try:
            with locked(self.path / LOCK, self.path, timeout=30.0 if shared else 0.0):
                self.is_started()  # another process may have started in the meantime
                yield
        finally:
            with contextlib.suppress(OSError):  # stops at a folder that is not empty or already removed
                for path in missing:
                    path.rmdir()


@dataclass
class Journal:
    """An open journal. entries: its entries, at first those of the interrupted command."""

    file: BinaryIO
    entries: list[Any]

    def add(self, entry: Any) -> None:
        """Append an entry and flush it, so that it is kept if the process is killed."""
        self.file.write(encode_line(entry))
        self.file.flush()
        self.entries.append(entry)


@contextlib.contextmanager
def open_journal(path: Path, identity: Mapping[str, Any]) -> Iterator[Journal]:
    """Create or resume the JSON Lines file at `path`. It is removed after the block, but kept if the block raises.

    identity: the options and inputs on which the entries depend, by name; the first line. A truncated last line is
    dropped. The caller must hold a lock. Raises InputError if an existing file has another identity or is no journal.
    """
    content = path.read_bytes() if path.is_file() else b""
    complete = content[: content.rfind(b"\n") + 1]
    with reraise_as_input_error(f"{path} is damaged", "remove it to restart"):
        header, *entries = [json.loads(line) for line in complete.splitlines()] or [identity]
        differing = describe_differences(dict(header), identity)
    if differing:
        raise InputError(f"{differing}, as in {path}; remove it to restart, or choose another output path")
    try:
        with path.open("ab") as file:
            file.truncate(len(complete))
            if not complete:
                file.write(encode_line(identity))
            yield Journal(file, entries)
    except BaseException:
        if not entries:
            path.unlink(missing_ok=True)
        raise
    path.unlink()


def check_new_file(path: Path) -> None:
    """Raise InputError if an output file exists."""
    if path.exists():
        raise InputError(f"{path} exists; choose another file, or remove it to write it again")


def describe_differences(existing: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    """Describe up to five differences between two identities, for messages; "" if they are equal.

    Of a mapping in both, such as options, those of its entries. More entries of `existing` itself are ignored.
    """
    texts = []
    for name, value in expected.items():
        current = existing.get(name)
        if isinstance(current, Mapping) and isinstance(value, Mapping):
            texts.append(describe_differences(current, {**dict.fromkeys(current), **value}))
        elif current != value:
            wanted = _SHORT.repr(current) if name in existing else "left out"
            texts.append(f"{name} must be {wanted}, got {_SHORT.repr(value)}")
    return ", and ".join([*filter(None, texts)][:5])


def encode_line(entry: Any) -> bytes:
    """Encode an entry of a file in JSON Lines format."""
    return encode_utf8(json.dumps(entry, ensure_ascii=False, allow_nan=False) + "\n")


def _is_ignored(path: Path) -> bool:
    """Whether a path is hidden, or is a folder that is empty or has only hidden files."""
    return is_hidden(path.name) or (path.is_dir() and all(is_hidden(file.name) for file in path.iterdir()))
