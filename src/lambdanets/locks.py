"""Locks: one process at a time works on a folder or file; a second one is refused and told which process has it.

A lock file names its owner (host, process, start of the process), who refreshes it while alive. A dead owner's lock is
taken over: at once on the owner's host, after a reboot too, and on another host, or where no owner is named, once
nothing has refreshed it for EXPIRY_SECONDS. A stopped process (SIGSTOP) is alive.

filelock takes over where the file system can exchange two names; network file systems and some others cannot, and a
zombie counts as alive there: those locks are removed here.
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
from lambdanets.terminal import say

LOCK = ".lock"
EXPIRY_SECONDS = 60.0


class InUseError(InputError):
    """Another live process holds the lock."""


class LostLockError(InputError):
    """This process no longer holds its lock."""


class Lock:
    """A lock that this process holds on a subject, the folder or file that messages name."""

    def __init__(self, lease: SoftFileLease, subject: Path) -> None:
        self._lease = lease
        self._subject = subject
        self._file = _file_at(Path(lease.lock_file))

    def check(self) -> None:
        """Raise LostLockError if the lock was removed, or taken over by another host while this process was stopped."""
        found = _file_at(Path(self._lease.lock_file))
        if found is None or self._file is None or found.inode != self._file.inode:
            owner = self._lease.owner
            why = f"was taken over by {_named(owner)}" if owner else f"has lost its lock file {self._lease.lock_file}"
            raise LostLockError(f"{self._subject} {why}; this process ends and leaves it alone")


@contextlib.contextmanager
def locked(path: Path, subject: Path, wait: float = 0.0, *, patient: bool = True) -> Iterator[Lock]:
    """Hold the lock file `path` for what the block does to `subject`.

    Raises InUseError, naming the owner, where another live process holds it for `wait` seconds more, and InputError
    where no file can be written.
    An owner on another host cannot be seen to be alive but by refreshing its lock: for that it waits EXPIRY_SECONDS,
    and says so. Unless patient, it takes such an owner for alive.
    """
    if not path.parent.is_dir():  # filelock would make it
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
    """Hold the lock of a folder, which is made if it is missing, and removed again if the block leaves it empty.

    Raises InUseError where another live process holds it for `wait` seconds more, and InputError where the folder
    cannot be made or written to.
    """
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    with interruptible(), contextlib.ExitStack() as stack:
        stack.callback(_remove_empty, made)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot make the folder {folder}: {error.strerror}") from error
        yield stack.enter_context(locked(folder / LOCK, folder, wait))


def _remove_empty(folders: list[Path]) -> None:
    with deferred(), contextlib.suppress(OSError):  # the first that is not empty, or that another process has removed
        for folder in folders:
            folder.rmdir()


def _acquire(lease: SoftFileLease, subject: Path, wait: float, patient: bool) -> None:
    if _acquired(lease, wait):
        return
    path = Path(lease.lock_file)
    found, owner = _file_at(path), lease.owner
    if found is not None and owner is not None and owner.hostname == _own_host() and _is_dead(owner.pid, found):
        _remove(path, found)
    if _acquired(lease, 0.5):  # the owner was dead or has ended meanwhile
        return
    found, owner = _file_at(path), lease.owner
    if found is not None and (owner is None or owner.hostname != _own_host()) and patient:
        said = f"{subject} is in use by {_named(owner)}; waiting {EXPIRY_SECONDS:.0f} s to see whether it is alive"
        say(said, file=sys.stderr)
        if _acquired(lease, 1.1 * EXPIRY_SECONDS):
            return
        if _file_at(path) == found:
            _remove(path, found)
            if _acquired(lease, 0.5):
                return
    advice = "wait for it to end, or name another place"
    if owner is None:
        advice += f"; if there is none, remove {path}"
    raise InUseError(f"{subject} is in use by {_named(owner)}; {advice}")


def _acquired(lease: SoftFileLease, timeout: float) -> bool:
    try:
        lease.acquire(timeout=timeout)
    except (Timeout, LeaseSettingsMismatch):
        return False
    return True


class _File(NamedTuple):
    """What tells a lock file from another at its place, and from itself once it was refreshed."""

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
    """Remove the lock file of an owner that was seen to be dead, and not one that has taken its place since."""
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


def _is_dead(pid: int, found: _File) -> bool:
    """Whether the owner, a process of this host, has ended: nothing has its number, a zombie, or a later process.

    A zombie waits for its parent: where none reaps it, as in many containers, for good.
    """
    try:
        process = psutil.Process(pid)
        return process.status() == psutil.STATUS_ZOMBIE or process.create_time() > found.refreshed / 1e9 + 5
    except psutil.NoSuchProcess:
        return True
    except psutil.Error:
        return False


@functools.cache
def _own_host() -> str:
    """This host as a lock file names it, which in a container is more than the host's name."""
    with tempfile.TemporaryDirectory() as folder:
        own = SoftFileLease(Path(folder) / LOCK)
        with own:
            return own.owner.hostname if own.owner else ""


def _named(owner: OwnerRecord | None) -> str:
    if owner is None:
        return "another process"
    words = f"process {owner.pid} on {owner.hostname.partition('?')[0]}"
    if owner.hostname != _own_host():
        return words
    try:
        started = datetime.datetime.fromtimestamp(psutil.Process(owner.pid).create_time())
    except psutil.Error:
        return words
    return f"{words}, which runs since {started:%Y-%m-%d %H:%M:%S}"
