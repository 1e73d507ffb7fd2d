"""Atomic writes, regular files, and files that are no data: hidden ones and outputs."""

import errno
import hashlib
import os
import stat
import unicodedata
from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from lambdanets.signals import uninterrupted

# Folders of thumbnails and deleted files, made by network storage, Windows, macOS and Linux.
_SYSTEM_FOLDERS = frozenset(
    ("@eadir", "#recycle", "#snapshot", "$recycle.bin", "system volume information", "__macosx", "lost+found")
)
RECIPE, RESULT = "recipe.json", "result.json"  # of a run
# Files and sub-folders by which the output folder of a command with figures is recognized. People also have files of
# the name recipe.json or scores.json beside their images.
_OUTPUTS = (
    {RECIPE, "metrics.csv"},  # train
    {RECIPE, "weights.safetensors"},  # train, handed on
    {"images.json", "results.json"},  # predict, of a detector
    {"classes.csv", "classes"},  # predict, of a segmenter
    {"predictions.partial"},  # predict, unfinished
    {"scores.json", "predictions.png"},  # evaluate
    {"confusion_matrix.csv", "predictions.csv"},  # evaluate, of a classifier, maybe unfinished
    {"attention.png", "receptive_field.png"},  # explain
    {"comparison.md", "results.json"},  # compare
    {"layer.png", "results.json"},  # benchmark layer
    {"scaling.png", "results.json"},  # benchmark scaling
)


@contextmanager
def atomic_open(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing that replaces `path` after the block; if the block raises, `path` is unchanged.

    The bytes are written to a hidden file in the same folder, which is synced and then renamed. A
    killed process leaves it, and the next write of the same file replaces it; so only one process at
    a time may write a file. OSErrors have `path` as their file name.
    """
    unfinished = path.with_name(f".{path.name}.unfinished")
    with uninterrupted():  # outside of this block a signal would end the process and leave the hidden file
        try:
            with unfinished.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        except BaseException as error:
            unfinished.unlink(missing_ok=True)
            if isinstance(error, OSError):
                error.filename = str(path)
            raise


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading. Raises OSError for other types such as named pipes, which may block forever."""
    if not stat.S_ISREG(mode := Path(path).stat().st_mode):
        problem = "it is a folder; name its files" if stat.S_ISDIR(mode) else "it is not a regular file"
        raise OSError(errno.EINVAL, problem, os.fspath(path))
    return Path(path).open("rb")


def atomic_write(path: Path, content: str | bytes | memoryview) -> None:
    """Write a file atomically: after a crash it has the old content or the new. Text is encoded by `encode_utf8`."""
    with atomic_open(path) as file:
        file.write(encode_utf8(content) if isinstance(content, str) else content)


def file_sha256(file: BinaryIO) -> str:
    """Return the SHA-256 of an open file, from its start, in hexadecimal digits."""
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # BinaryIO lacks readinto


def encode_utf8(text: str) -> bytes:
    """Encode text as UTF-8. Surrogates, as in file names that are not UTF-8, are escaped."""
    return text.encode("utf-8", "backslashreplace")


def nfc(name: str) -> str:
    """Return a name in the Unicode form NFC, to compare it: only macOS decomposes accents."""
    return unicodedata.normalize("NFC", name)


def is_hidden(name: str) -> bool:
    """Whether a file or folder is not a person's: its name begins with a dot, or is a system's."""
    return name.startswith(".") or name.lower() in _SYSTEM_FOLDERS


def is_output(names: Set[str]) -> bool:
    """Whether a folder with files and sub-folders of these names is the output of a command, which has figures."""
    return any(files <= names for files in _OUTPUTS)
