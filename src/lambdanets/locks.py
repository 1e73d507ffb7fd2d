"""File locks: one process at a time works on a folder or file; others raise InUseError, which names the owner.

A lock file names its owner (host, process ID, start time), which refreshes it while alive. The lock of a dead owner is
taken over: on the owner's host at once, also after a reboot; on another host, or if no owner is named, when it has not
been refreshed for EXPIRY_SECONDS. A stopped process (SIGSTOP) is alive.

filelock takes locks over only where the file system can exchange two names, unlike network file systems, and counts a
zombie as alive. This module removes such locks.
"""

import contextlib
import datetime
import errno
import functools
import os
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
from filelock import LeaseSettingsMismatch, OwnerRecord, SoftFileLease, Timeout

from lambdanets.errors import InputError
from lambdanets.signals import deferred, interruptible
from lambdanets.terminal import echo

LOCK = ".lock"
EXPIRY_SECONDS = 60.0


class InUseError(InputError):
    """Another live process holds the lock."""


class LostLockError(InputError):
    """This process no longer holds its lock."""


class Lock:
    """A lock held by this process. subject: the locked folder or file, for messages."""

    def __init__(self, lease: SoftFileLease, subject: Path) -> None:
        self._lease = lease
        self._subject = subject
        self._file = _file_at(Path(lease.lock_file))

    def check(self) -> None:
        """Raise LostLockError if the lock was removed, or taken over by another host while this process was stopped."""
        current = _file_at(Path(self._lease.lock_file))
        if current is None or self._file is None or current.inode != self._file.inode:
            owner = self._lease.owner
            why = f"was taken over by {_describe(owner)}" if owner else f"lost its lock file {self._lease.lock_file}"
            raise LostLockError(f"{self._subject} {why}; this process stops without writing to it")


@contextlib.contextmanager
def locked(path: Path, subject: Path, wait: float = 0.0, *, patient: bool = True) -> Iterator[Lock]:
    """Hold the lock file `path` within the block, for work on `subject`.

    Raises InUseError, naming the owner, if another live process still holds it after `wait` seconds, and InputError if
    the lock file cannot be written. Only a refresh shows that an owner on another host is alive: if patient, wait
    EXPIRY_SECONDS for one, with a message; otherwise assume that it is alive.
    """
    if not path.parent.is_dir():  # filelock would create it
        raise InputError(f"{subject}: {os.strerror(errno.ENOENT)}")
    lease = SoftFileLease(path, lease_duration=EXPIRY_SECONDS, timeout=0, thread_local=False)
    with interruptible():  # a signal that ended the process at once would leave the lock file
        try:
            try:
                _acquire(lease, subject, wait, patient)
                lock = Lock(lease, subject)
            except OSError as error:
                raise InputError(f"{subject}: {error.strerror}") from error
            yield lock
        finally:
            with deferred():
                lease.release()


@contextlib.contextmanager
def locked_folder(folder: Path, wait: float = 0.0) -> Iterator[Lock]:
    """Hold the lock of a folder, which is created if missing, and removed if the block leaves it empty.

    Raises InUseError if another live process still holds it after `wait` seconds, and InputError if the folder cannot
    be created or written to.
    """
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    with interruptible(), contextlib.ExitStack() as stack:
        stack.callback(_remove_empty, created)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"folder {folder} cannot be created: {error.strerror}") from error
        yield stack.enter_context(locked(folder / LOCK, folder, wait))


def _remove_empty(folders: list[Path]) -> None:
    with deferred(), contextlib.suppress(OSError):  # stops at one that is not empty or already removed
        for folder in folders:
            folder.rmdir()


def _acquire(lease: SoftFileLease, subject: Path, wait: float, patient: bool) -> None:
    if _acquired(lease, wait):
        return
    path = Path(lease.lock_file)
    lock_file, owner = _file_at(path), lease.owner
    if lock_file is not None and owner is not None and owner.hostname == _own_host() and _is_dead(owner.pid, lock_file):
        _remove(path, lock_file)
    if _acquired(lease, 0.5):  # the owner was dead or has ended meanwhile
        return
    lock_file, owner = _file_at(path), lease.owner
    if lock_file is not None and (owner is None or owner.hostname != _own_host()) and patient:
        message = f"{subject} is in use by {_describe(owner)}; waiting {EXPIRY_SECONDS:.0f} s to see if it is alive"
        echo(message, file=sys.stderr)
        if _acquired(lease, 1.1 * EXPIRY_SECONDS):
            return
        if _file_at(path) == lock_file:
            _remove(path, lock_file)
            if _acquired(lease, 0.5):
                return
    advice = "wait for it to end, or choose another path"
    if owner is None:
        advice += f"; if no process uses it, remove {path}"
    raise InUseError(f"{subject} is in use by {_describe(owner)}; {advice}")


def _acquired(lease: SoftFileLease, timeout: float) -> bool:
    try:
        lease.acquire(timeout=timeout)
    except (Timeout, LeaseSettingsMismatch):
        return False
    return True


class _File(NamedTuple):
    """The state of a lock file, which changes when it is refreshed or replaced."""

    inode: tuple[int, int]
    refreshed: int  # ns
    content: bytes


def _file_at(path: Path) -> _File | None:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            return _File((status.st_dev, status.st_ino), status.st_mtime_ns, file.read(4096))
    except FileNotFoundError:
        return None


def _remove(path: Path, dead: _File) -> None:
    """Remove the lock file of a dead owner, unless another process has replaced it since."""
    aside = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    with deferred():
        try:
            if _file_at(path) != dead:
                return
            path.rename(aside)
            if _file_at(aside) != dead:  # another process was faster within these lines
                os.link(aside, path)
            aside.unlink()
        except FileNotFoundError:
            return


def _is_dead(pid: int, lock_file: _File) -> bool:
    """Whether the owner on this host is dead: its process ID is unused, a zombie's or reused.

    In many containers zombies are never reaped.
    """
    try:
        process = psutil.Process(pid)
        return process.status() == psutil.STATUS_ZOMBIE or process.create_time() > lock_file.refreshed / 1e9 + 5
    except psutil.NoSuchProcess:
        return True
    except psutil.Error:
        return False


@functools.cache
def _own_host() -> str:
    """This host as filelock names it in lock files; in a container not only the host name."""
    with tempfile.TemporaryDirectory() as folder:
        own = SoftFileLease(Path(folder) / LOCK)
        with own:
            return own.owner.hostname if own.owner else ""


def _describe(owner: OwnerRecord | None) -> str:
    if owner is None:
        return "another process"
    text = f"process {owner.pid} on {owner.hostname.partition('?')[0]}"
    if owner.hostname != _own_host():
        return text
    try:
        started = datetime.datetime.fromtimestamp(psutil.Process(owner.pid).create_time())
    except psutil.Error:
        return text
    return f"{text}, running since {started:%Y-%m-%d %H:%M:%S}"
