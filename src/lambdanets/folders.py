"""Output folders, in which only one command at a time can start or resume its work."""

from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lambdanets.errors import InputError
from lambdanets.files import remove_unfinished
from lambdanets.locks import locked_folder

_MAX_CHARACTERS = 40  # messages omit longer values, such as hashes
# Folders of thumbnails and deleted files, made by network storage, Windows, macOS and Linux.
_SYSTEM_FOLDERS = frozenset(
    ("@eadir", "#recycle", "#snapshot", "$recycle.bin", "system volume information", "__macosx", "lost+found")
)


@dataclass(frozen=True)
class WorkFolder:
    """An output folder, which may be new, empty, or have unfinished or finished output of the same work.

    work: what the folder is for, in messages, such as "a run".
    identity: the options and inputs on which the output depends, by name.
    read_identity: reads the identity from an existing folder; returns None if the folder has no such output.
    advice: the end of error messages.

    Hidden files and empty sub-folders are ignored.
    """

    path: Path
    work: str = "work"
    identity: Mapping[str, Any] = field(default_factory=dict)
    read_identity: Callable[[Path], Mapping[str, Any] | None] = lambda folder: None
    advice: str = "choose another folder"

    def is_started(self) -> bool:
        """Whether the folder has output of the same identity. Raises InputError if it has other output or files."""
        if not self.path.is_dir():
            if self.path.exists():
                raise InputError(f"{self.path} must be a folder, got a file; {self.advice}")
            return False
        existing = self.read_identity(self.path)
        if existing is None:
            if foreign := sorted(entry.name for entry in self.path.iterdir() if not _is_ignored(entry)):
                advice = "choose another folder, or remove it if you do not need it"
                raise InputError(f"{self.path} is not empty, it has {foreign[0]}; {advice}")
            return False
        if differing := describe_differences(existing, self.identity):
            raise InputError(f"{self.path} has {self.work} with {differing}; {self.advice}")
        return True

    @contextmanager
    def open(self, *, shared: bool = False) -> Iterator[None]:
        """Create the folder and hold its lock within the block; temporary files of killed processes are removed.

        shared: several processes work in the folder, and hold this lock only while they start. Then it is acquired
            with a timeout, and temporary files are kept, because another process may be writing them.

        Raises InputError as `is_started` does, before the folder is created, and InUseError if another process holds
        the lock.
        """
        self.is_started()
        with locked_folder(self.path, timeout=30.0 if shared else 0.0):
            self.is_started()  # another process may have started in the meantime
            if not shared:
                remove_unfinished(self.path)
            yield


def check_new_file(path: Path) -> None:
    """Raise InputError if an output file exists."""
    if path.exists():
        raise InputError(f"{path} exists; choose another file with --out, or remove it to write it again")


def describe_differences(existing: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    """Describe up to five differences between two identities, for messages; "" if they are equal."""
    messages = []
    for name, value in expected.items():
        current = existing.get(name)
        if name in existing and current == value:
            continue
        nested = ""
        if isinstance(current, Mapping) and isinstance(value, Mapping):
            nested = describe_differences(current, value)
        old, new = repr(current), repr(value)
        if nested:
            messages.append(f"{name} ({nested})")
        else:
            is_long = max(len(old), len(new)) > _MAX_CHARACTERS
            messages.append(f"other {name}" if is_long else f"{name} {old}, not {new}")
    return ", ".join(messages[:5])


def _is_ignored(path: Path) -> bool:
    """Whether a path is hidden, or is a folder that is empty or has only hidden files."""
    return is_hidden(path.name) or (path.is_dir() and all(is_hidden(file.name) for file in path.iterdir()))


def is_hidden(name: str) -> bool:
    """Whether a file or folder is not a person's: its name begins with a dot, or is a system's."""
    return name.startswith(".") or name.lower() in _SYSTEM_FOLDERS


# Files and sub-folders by which the output folder of a command is recognized.
_OUTPUTS = (
    {"recipe.json"},  # train
    {"images.json", "results.json"},  # detect predict
    {"detections.partial"},
    {"classes.csv", "classes"},  # segment predict
    {"segmentations.partial"},
    {"scores.json"},  # detect evaluate, segment evaluate
    {"per_class_accuracy.csv"},  # evaluate
    {"explanation.npz"},  # explain
    {"comparison.md", "results.json"},  # compare
)


def is_output(names: Set[str]) -> bool:
    """Whether a folder with files and sub-folders of these names is the output of a command, which has figures."""
    return any(files <= names for files in _OUTPUTS)
