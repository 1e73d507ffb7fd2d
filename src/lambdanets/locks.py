"""Locks: one process at a time works on a folder or file; a second one is refused and told which process has it.

A lock file names its owner (host, process, start of the process), who refreshes it while alive. A dead owner's lock is
taken over: at once on the owner's host, after a reboot too, and on another host once nothing has refreshed it for
EXPIRY_SECONDS. A stopped process (SIGSTOP) is alive.
"""

import contextlib
import datetime
import errno
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
from filelock import LeaseSettingsMismatch, OwnerRecord, SoftFileLease, Timeout

from lambdanets.errors import InputError
from lambdanets.signals import deferred, interruptible
from lambdanets.terminal import say

LOCK = ".lock"
EXPIRY_SECONDS = 60.0


class InUseError(InputError):
    """Another live process holds the lock."""


class Lock:
    """A lock that this process holds on a subject, the folder or file that messages name."""

    def __init__(self, lease: SoftFileLease, subject: Path) -> None:
        self._lease = lease
        self._subject = subject

    def check(self) -> None:
        """Raise InUseError if the lock was lost: removed, or taken over by another host while this one was stopped."""
        if self._lease.compromise is not None:
            owner = self._lease.owner
            why = f"was taken over by {_named(owner)}" if owner else f"has lost its lock file {self._lease.lock_file}"
            raise InUseError(f"{self._subject} {why}; this process ends and leaves it alone")


@contextlib.contextmanager
def locked(path: Path, subject: Path, wait: float = 0.0) -> Iterator[Lock]:
    """Hold the lock file `path` for what the block does to `subject`.

    Raises InUseError, naming the owner, where another live process holds it for `wait` seconds more, and InputError
    where no file can be written.
    An owner on another host cannot be seen to be alive but by refreshing its lock: for that it waits EXPIRY_SECONDS,
    and says so.
    """
    if not path.parent.is_dir():  # filelock would make it
        raise InputError(f"{subject}: {os.strerror(errno.ENOENT)}")
    lease = SoftFileLease(path, lease_duration=EXPIRY_SECONDS, timeout=0, thread_local=False)
    with interruptible():  # a signal that ended the process at once would leave the lock file
        try:
            try:
                _acquire(lease, subject, wait)
            except OSError as error:
                raise InputError(f"{subject}: {error.strerror}") from error
            yield Lock(lease, subject)
        finally:
            with deferred():
                lease.release()


@contextlib.contextmanager
def locked_folder(folder: Path) -> Iterator[Lock]:
    """Hold the lock of a folder, which is made if it is missing, and removed again if the block leaves it empty.

    Raises InUseError where another live process holds it, and InputError where the folder cannot be made or written to.
    """
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    with interruptible(), contextlib.ExitStack() as stack:
        stack.callback(_remove_empty, made)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot make the folder {folder}: {error.strerror}") from error
        yield stack.enter_context(locked(folder / LOCK, folder))


def _remove_empty(folders: list[Path]) -> None:
    with deferred(), contextlib.suppress(OSError):  # the first that is not empty, or that another process has removed
        for folder in folders:
            folder.rmdir()


def _acquire(lease: SoftFileLease, subject: Path, wait: float) -> None:
    for timeout in (wait, 1.0):  # the second: an owner that ended meanwhile, a lock file that is not written yet
        try:
            lease.acquire(timeout=timeout)
            return
        except (Timeout, LeaseSettingsMismatch):
            owner = lease.owner
            if owner is None:
                continue
            if owner.hostname != _own_host():
                _wait_for_expiry(lease, subject, owner)
                return
            if not _is_zombie(owner.pid):
                break
            lease.force_break()
    raise InUseError(f"{subject} is in use by {_named(lease.owner)}; wait for it to end, or name another place")


def _wait_for_expiry(lease: SoftFileLease, subject: Path, owner: OwnerRecord) -> None:
    say(
        f"{subject} is in use by {_named(owner)}; waiting {EXPIRY_SECONDS:.0f} s to see whether it is alive",
        file=sys.stderr,
    )
    try:
        lease.acquire(timeout=1.1 * EXPIRY_SECONDS)
    except (Timeout, LeaseSettingsMismatch) as error:
        raise InUseError(
            f"{subject} is in use by {_named(owner)}; wait for it to end, or name another place"
        ) from error


def _own_host() -> str:
    """This host as a lock file names it, which in a container is more than the host's name."""
    with tempfile.TemporaryDirectory() as folder:
        own = SoftFileLease(Path(folder) / LOCK)
        with own:
            return own.owner.hostname if own.owner else ""


def _is_zombie(pid: int) -> bool:
    """Whether a process has ended and waits for its parent: where none reaps it, as in many containers, for good."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


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
