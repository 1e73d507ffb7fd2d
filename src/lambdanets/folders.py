"""Output folders: one command at a time starts or resumes the work in a folder."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lambdanets.errors import InputError
from lambdanets.files import remove_unfinished
from lambdanets.locks import Lock, locked_folder

_MAX_CHARACTERS = 40  # of a value in a message; of longer ones, such as hashes, only the name is given


@dataclass(frozen=True)
class WorkFolder:
    """An output folder: new, empty, or with an unfinished or finished state of the same work.

    work: its name in messages, such as "a run". identity: what the work depends on, by name. read_identity: reads the
    identity from an existing folder; None if the folder has no such work. advice: the end of error messages. Hidden
    files and empty sub-folders are ignored.
    """

    path: Path
    work: str = "work"
    identity: Mapping[str, Any] = field(default_factory=dict)
    read_identity: Callable[[Path], Mapping[str, Any] | None] = lambda folder: None
    advice: str = "choose another folder"

    def is_started(self) -> bool:
        """Whether the folder has a state of this work. Raises InputError if it has other work or other files."""
        if not self.path.is_dir():
            if self.path.exists():
                raise InputError(f"{self.path} must be a folder, got a file; {self.advice}")
            return False
        existing = self.read_identity(self.path)
        if existing is None:
            if foreign := sorted(entry.name for entry in self.path.iterdir() if not _is_ignored(entry)):
                raise InputError(f"{self.path} is not empty, it has {foreign[0]}; choose another folder")
            return False
        if differing := differences(existing, self.identity):
            raise InputError(f"{self.path} has {self.work} with {differing}; {self.advice}")
        return True

    @contextmanager
    def open(self, *, shared: bool = False) -> Iterator[Lock]:
        """Create the folder and hold its lock; temporary files of killed processes are removed.

        shared: several processes work in the folder with finer locks, and hold this one only to start. It is waited
        for, and temporary files, which another process may be writing, are kept. Raises InputError as `is_started`
        does, before the folder is created, and InUseError if another process holds the lock.
        """
        self.is_started()
        with locked_folder(self.path, wait=30.0 if shared else 0.0) as lock:
            self.is_started()  # another process may have started in the meantime
            if not shared:
                remove_unfinished(self.path)
            yield lock


def differences(existing: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    """Up to five differences between two identities, for messages; "" if there is none."""
    parts = []
    for name, value in expected.items():
        current = existing.get(name)
        if name in existing and current == value:
            continue
        nested = differences(current, value) if isinstance(current, Mapping) and isinstance(value, Mapping) else ""
        was, now = repr(current), repr(value)
        if nested:
            parts.append(f"{name} ({nested})")
        else:
            parts.append(f"other {name}" if max(len(was), len(now)) > _MAX_CHARACTERS else f"{name} {was}, not {now}")
    return ", ".join(parts[:5])


def _is_ignored(path: Path) -> bool:
    """Whether a path is hidden, or a folder with hidden files at most."""
    return path.name.startswith(".") or (path.is_dir() and not any(path.glob("[!.]*")))
