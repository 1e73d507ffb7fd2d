"""File locks: only one process at a time works on a folder or file; others raise InUseError, which names the owner.

The operating system holds the lock (flock) and releases it when its process ends, however it ends. So no lock can be
left over, and none can be taken from a process that is alive or stopped, whatever the clocks and process IDs are. On a
network file system this needs one that supports flock across hosts, such as NFS 4.
"""

import contextlib
import datetime
import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from lambdanets.errors import InputError
from lambdanets.files import open_regular
from lambdanets.signals import deferred, interruptible

LOCK = ".lock"


class InUseError(InputError):
    """Another running process holds the lock."""


@contextlib.contextmanager
def locked(path: Path, subject: Path, timeout: float = 0.0) -> Iterator[None]:
    """Hold the lock file `path` within the block, for work on the folder or file `subject`.

    timeout: seconds to wait for the lock.

    Raises InUseError, which names the owner, if another running process holds the lock, and InputError if the lock file
    cannot be written.
    """
    if not path.parent.is_dir():  # filelock would create it
        raise InputError(f"{subject}: {os.strerror(errno.ENOENT)}")
    file_lock = FileLock(path, timeout=timeout, thread_local=False)
    with interruptible():  # outside of this block a signal would end the process and leave the lock file
        try:
            try:
                file_lock.acquire()
                path.write_text(_describe_this_process())
            except Timeout:
                advice = "wait for it to end, or choose another path"
                raise InUseError(f"{subject} is in use by {_read_owner(path)}; {advice}") from None
            except OSError as error:
                raise InputError(f"{subject}: {error.strerror}") from error
            yield
        finally:
            with deferred():
                if file_lock.is_locked:
                    path.unlink(missing_ok=True)  # afterwards another process may hold it
                file_lock.release()


@contextlib.contextmanager
def locked_folder(folder: Path, timeout: float = 0.0) -> Iterator[None]:
    """Hold the lock of a folder within the block. A missing folder is created, and removed if it is left empty.

    timeout: seconds to wait for the lock.

    Raises InUseError if another running process holds the lock, and InputError if the folder cannot be created or
    written to.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    with interruptible(), contextlib.ExitStack() as stack:
        stack.callback(_remove_empty, missing)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"folder {folder} cannot be created: {error.strerror}") from error
        stack.enter_context(locked(folder / LOCK, folder, timeout))
        yield


def _remove_empty(folders: list[Path]) -> None:
    with deferred(), contextlib.suppress(OSError):  # stops at a folder that is not empty or already removed
        for folder in folders:
            folder.rmdir()


def _describe_this_process() -> str:
    started = datetime.datetime.fromtimestamp(psutil.Process().create_time())
    return f"process {os.getpid()} on {socket.gethostname()}, running since {started:%Y-%m-%d %H:%M:%S}"


def _read_owner(path: Path) -> str:
    """Return the description of the owner, which it writes right after it has acquired the lock."""
    with contextlib.suppress(OSError), open_regular(path) as file:
        if text := file.read(200).decode(errors="replace"):
            return text
    return "another process"
