"""Atomic writes, leftovers of killed processes, and regular files only."""

import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from lambdanets.signals import deferred, interruptible


@contextmanager
def atomic_open(path: Path, before: Path | None = None) -> Iterator[BinaryIO]:
    """Open a file to write that replaces `path` when the block ends, and leaves it as it was if the block raises.

    The bytes go to a hidden file in the same folder, which is synced and renamed. An existing file is renamed to
    `before`, if given. An OSError names the path.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    with interruptible():  # a signal that ended the process at once would leave the hidden file
        try:
            with unfinished.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            with deferred():
                if before is not None and path.is_file():
                    path.replace(before)
                unfinished.replace(path)
        except BaseException as error:
            with deferred():
                unfinished.unlink(missing_ok=True)
            if isinstance(error, OSError):
                error.filename = str(path)
            raise


_SPECIAL = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file to read. Raises OSError, also for a named pipe and the like, which are not opened: that may hang."""
    kind = stat.S_IFMT(os.stat(path).st_mode)  # noqa: PTH116 - a path in text, as Pillow takes, too
    if kind != stat.S_IFREG:
        raise OSError(f"it is {_SPECIAL.get(kind, 'a special file')}, not a file")
    return Path(path).open("rb")


def atomic_write(path: Path, content: bytes | memoryview) -> None:
    """Write a file atomically: after a crash it holds the former content or the new one."""
    with atomic_open(path) as file:
        file.write(content)


def sha256_of(file: BinaryIO) -> str:
    """The SHA-256 of an open file from its beginning, in hexadecimal digits."""
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # BinaryIO lacks readinto


def remove_unfinished(folder: Path, name: str = "") -> None:
    """Remove the hidden leftovers of killed atomic writes; of those of one file where it is named."""
    for leftover in folder.glob(".*.unfinished"):
        if name and not leftover.name.startswith(f".{name}."):
            continue
        if leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)


def printable_bytes(text: str) -> bytes:
    """Text as UTF-8; what no text can be, such as a byte of a file name in another encoding, is escaped."""
    return text.encode("utf-8", "backslashreplace")
