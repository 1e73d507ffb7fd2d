"""File locks: only one process at a time works on a folder or file; others raise InUseError, which names the owner.

A lock file contains its owner (host, process ID, start time). The owner refreshes the file while it is alive. The lock
of a dead owner is taken over: at once on the owner's host, even after a reboot; on another host, or if the file names
no owner, when the file has not been refreshed for EXPIRY_SECONDS. A stopped process (SIGSTOP) counts as alive.

filelock itself takes over locks only on file systems that can exchange two file names, which network file systems
cannot, and it counts zombies as alive. This module therefore removes the locks of dead owners.
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
    """Another running process holds the lock."""


class LostLockError(InputError):
    """This process no longer holds its lock."""


class Lock:
    """A lock held by this process. subject: the locked folder or file, for messages."""

    def __init__(self, lease: SoftFileLease, subject: Path) -> None:
        self._lease = lease
        self._subject = subject
        self._file = _read_state(Path(lease.lock_file))

    def check(self) -> None:
        """Raise LostLockError if the lock file was removed, or another host took the lock over."""
        current = _read_state(Path(self._lease.lock_file))
        if current is None or self._file is None or current.inode != self._file.inode:
            owner = self._lease.owner
            taker = f"was taken over by {_describe_owner(owner)}" if owner else ""
            reason = taker or f"lost its lock file {self._lease.lock_file}"
            raise LostLockError(f"{self._subject} {reason}; this process stops without writing to it")


@contextlib.contextmanager
def locked(path: Path, subject: Path, timeout: float = 0.0, *, await_refresh: bool = True) -> Iterator[Lock]:
    """Hold the lock file `path` within the block, for work on the folder or file `subject`.

    timeout: seconds to wait for the lock.
    await_refresh: an owner on another host is known to be alive only when it refreshes the lock file. If True, print a
        message and wait EXPIRY_SECONDS for a refresh. If False, assume that the owner is alive.

    Raises InUseError, which names the owner, if another running process holds the lock, and InputError if the lock file
    cannot be written.
    """
    if not path.parent.is_dir():  # filelock would create it
        raise InputError(f"{subject}: {os.strerror(errno.ENOENT)}")
    lease = SoftFileLease(path, lease_duration=EXPIRY_SECONDS, timeout=0, thread_local=False)
    with interruptible():  # outside of this block a signal would end the process and leave the lock file
        try:
            try:
                _acquire(lease, subject, timeout, await_refresh)
                lock = Lock(lease, subject)
            except OSError as error:
                raise InputError(f"{subject}: {error.strerror}") from error
            yield lock
        finally:
            with deferred():
                lease.release()


@contextlib.contextmanager
def locked_folder(folder: Path, timeout: float = 0.0) -> Iterator[Lock]:
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
        yield stack.enter_context(locked(folder / LOCK, folder, timeout))


def _remove_empty(folders: list[Path]) -> None:
    with deferred(), contextlib.suppress(OSError):  # stops at a folder that is not empty or already removed
        for folder in folders:
            folder.rmdir()


def _acquire(lease: SoftFileLease, subject: Path, timeout: float, await_refresh: bool) -> None:
    if _try_acquire(lease, timeout):
        return
    path = Path(lease.lock_file)
    lock_file, owner = _read_state(path), lease.owner
    if lock_file is not None and owner is not None and owner.hostname == _own_host() and _is_dead(owner.pid, lock_file):
        _remove(path, lock_file)
    if _try_acquire(lease, 0.5):  # succeeds if the owner was dead or has ended since
        return
    lock_file, owner = _read_state(path), lease.owner
    if lock_file is not None and (owner is None or owner.hostname != _own_host()) and await_refresh:
        message = (
            f"{subject} is in use by {_describe_owner(owner)}; waiting {EXPIRY_SECONDS:.0f} s to see if it is alive"
        )
        echo(message, file=sys.stderr)
        if _try_acquire(lease, 1.1 * EXPIRY_SECONDS):
            return
        if _read_state(path) == lock_file:
            _remove(path, lock_file)
            if _try_acquire(lease, 0.5):
                return
    advice = "wait for it to end, or choose another path"
    if owner is None:
        advice += f"; if no process uses it, remove {path}"
    raise InUseError(f"{subject} is in use by {_describe_owner(owner)}; {advice}")


def _try_acquire(lease: SoftFileLease, timeout: float) -> bool:
    try:
        lease.acquire(timeout=timeout)
    except (Timeout, LeaseSettingsMismatch):
        return False
    return True


class _LockFileState(NamedTuple):
    """The state of a lock file, which changes when it is refreshed or replaced."""

    inode: tuple[int, int]
    refreshed: int  # ns
    content: bytes


def _read_state(path: Path) -> _LockFileState | None:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            return _LockFileState((status.st_dev, status.st_ino), status.st_mtime_ns, file.read(4096))
    except FileNotFoundError:
        return None


def _remove(path: Path, dead: _LockFileState) -> None:
    """Remove the lock file of a dead owner, unless another process has replaced the file since it was read."""
    renamed = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    with deferred():
        try:
            if _read_state(path) != dead:
                return
            path.rename(renamed)
            if _read_state(renamed) != dead:  # another process replaced the file between the two lines above
                os.link(renamed, path)
            renamed.unlink()
        except FileNotFoundError:
            return


def _is_dead(pid: int, lock_file: _LockFileState) -> bool:
    """Whether the owner on this host is dead: its process ID is unused, reused, or a zombie's.

    In many containers zombies stay forever.
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
    """Return the name of this host in filelock's lock files, which in a container is longer than the host name."""
    with tempfile.TemporaryDirectory() as folder:
        own = SoftFileLease(Path(folder) / LOCK)
        with own:
            return own.owner.hostname if own.owner else ""


def _describe_owner(owner: OwnerRecord | None) -> str:
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
