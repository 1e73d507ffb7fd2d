"""Output folders: each holds one piece of work, which one command at a time begins or resumes."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lambdanets.errors import InputError
from lambdanets.files import remove_unfinished
from lambdanets.locks import Lock, locked_folder

_SHOWN = 40  # characters of a value in a message; of longer ones, such as hashes, it says only that they differ


@dataclass(frozen=True)
class WorkFolder:
    """A folder to write into: new, empty, or one that holds some of the same work.

    work: what it holds, such as "a run". identity: what the work depends on, by the names that messages use. found:
    the identity of the work in a folder; None where there is none. Hidden files and empty folders do not count.
    """

    path: Path
    work: str = "work"
    identity: Mapping[str, Any] = field(default_factory=dict)
    found: Callable[[Path], Mapping[str, Any] | None] = lambda folder: None
    advice: str = "name another folder"

    def is_begun(self) -> bool:
        """Whether the folder holds some of this work. Raises InputError for other work, and for anything else."""
        if not self.path.is_dir():
            if self.path.exists():
                raise InputError(f"{self.path} must be a folder, got a file; {self.advice}")
            return False
        found = self.found(self.path)
        if found is None:
            if foreign := sorted(entry.name for entry in self.path.iterdir() if _counts(entry)):
                raise InputError(f"{self.path} holds something already: {foreign[0]}; name another folder")
            return False
        if differ := differences(found, self.identity):
            raise InputError(f"{self.path} holds {self.work} with {differ}; {self.advice}")
        return True

    @contextmanager
    def open(self, *, shared: bool = False) -> Iterator[Lock]:
        """Hold the folder's lock; without leftovers of killed processes.

        shared: several processes work in the folder, under locks of their own, and hold this one to begin, for
        milliseconds; it is waited for, and leftovers may be another's unfinished work. Raises InputError as `is_begun`
        does, before a folder is made, and InUseError where another process holds the lock.
        """
        self.is_begun()
        with locked_folder(self.path, wait=30.0 if shared else 0.0) as lock:
            self.is_begun()  # another process may have begun meanwhile
            if not shared:
                remove_unfinished(self.path)
            yield lock


def differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """In what a found identity differs from the wanted one, in words; nothing where it does not."""
    words = []
    for name, value in wanted.items():
        there = found.get(name)
        if name in found and there == value:
            continue
        inside = differences(there, value) if isinstance(there, Mapping) and isinstance(value, Mapping) else ""
        was, now = repr(there), repr(value)
        if inside:
            words.append(f"{name} ({inside})")
        else:
            words.append(f"other {name}" if max(len(was), len(now)) > _SHOWN else f"{name} {was}, not {now}")
    return ", ".join(words[:5])


def _counts(path: Path) -> bool:
    """Whether it is neither hidden nor a folder without anything in it but hidden files."""
    return not path.name.startswith(".") and not (path.is_dir() and not any(path.glob("[!.]*")))
