"""Signal handling of the command line: SIGINT, SIGTERM, SIGHUP, and SIGUSR1 and SIGUSR2, which job schedulers
send on request, end a command with exit code 130.

Outside of `uninterrupted` blocks, at once. Within them, the block ends where it calls `check_signals`, between two
images, or after a training step that finds `arrived` set, so that what it is writing is complete; a second SIGINT
ends the process at once. Only the command line and runs install handlers, and only in place of default ones.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

EXIT_CODE = 130
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")  # Windows has only the first two
SIGNALS = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))

arrived = False  # whether a signal has arrived in an `uninterrupted` block
_depth = 0  # of the nested `uninterrupted` blocks that the main thread is in; others do not handle signals


@contextlib.contextmanager
def handle_signals() -> Iterator[None]:
    """Install the command line's handler of SIGNALS within the block.

    Not for signals that the parent process ignores (SIGHUP under nohup, SIGINT in a background job), nor for those that
    the program handles, such as SIGUSR2 with submitit.
    """
    global arrived
    signals = SIGNALS if threading.current_thread() is threading.main_thread() else ()
    previous: dict[signal.Signals, Any] = {}
    for signum in signals:
        if signal.getsignal(signum) in (signal.SIG_DFL, signal.default_int_handler, _handle):
            previous[signum] = signal.signal(signum, _handle)
    try:
        yield
    finally:
        for signum, old in previous.items():
            signal.signal(signum, old)
        if previous and _handle not in previous.values():  # otherwise an outer block reads it
            arrived = False


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Let a signal raise KeyboardInterrupt only in `check_signals` within the block, or at its end without an error."""
    global _depth
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
    if not _depth:
        check_signals()


def check_signals() -> None:
    """Raise KeyboardInterrupt if a signal has arrived."""
    if arrived and threading.current_thread() is threading.main_thread():
        raise KeyboardInterrupt


@contextlib.contextmanager
def resumable(how: str, started: Path | None = None) -> Iterator[None]:
    """Like `uninterrupted`, for work that can be resumed: the command line says how after a signal or a failure.

    how: a clause, which becomes a note of the exception. started: a file without which nothing can be resumed.
    """
    try:
        with uninterrupted():
            yield
    except (KeyboardInterrupt, OSError, MemoryError, RuntimeError) as error:
        if started is None or started.is_file():
            error.add_note(how)
        raise


def _handle(signum: int, frame: FrameType | None) -> None:
    global arrived
    if not _depth or (arrived and signum == signal.SIGINT):  # job schedulers may send SIGTERM several times
        os._exit(EXIT_CODE)
    arrived = True
