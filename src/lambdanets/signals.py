"""Signal handling of the command line: SIGINT, SIGTERM, SIGHUP, and SIGUSR1 and SIGUSR2, which job schedulers
send on request, end a command with exit code 130.

Outside of `uninterrupted` blocks, at once. Within them, the block ends where it calls `check_signals`, between two
images or steps, so that what it is writing is complete; a second SIGINT ends the process at once. Only the command line
installs handlers. Programs that import the package keep their own. While a run trains, `training/checkpoints.py` has
a handler of its own, which stops it after a step.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from lambdanets.terminal import echo

Handler = Callable[[int, FrameType | None], None]
EXIT_CODE = 130
_USER_SIGNALS = ("SIGUSR1", "SIGUSR2")
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", *_USER_SIGNALS)  # Windows has only the first two
SIGNALS = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))

# Only the main thread handles signals.
_depth = 0  # of the nested `uninterrupted` blocks that it is in
_pending = False  # whether a signal has arrived that `check_signals` has not raised yet
_stopping = False  # whether a signal has arrived in a block


@contextlib.contextmanager
def handle_signals(handler: Handler | None = None) -> Iterator[None]:
    """Install a handler of SIGNALS within the block, by default that of the command line.

    Not for signals that the parent process ignores (SIGHUP under nohup, SIGINT in a background job), nor for those that
    the program handles, such as SIGUSR2 with submitit. SIGUSR1 and SIGUSR2 are handled only in the command line, since
    Python does not know the handlers of faulthandler.
    """
    global _pending, _stopping
    _pending = _stopping = False
    signals = SIGNALS if threading.current_thread() is threading.main_thread() else ()
    previous: dict[signal.Signals, Any] = {}
    for signum in signals:
        old = signal.getsignal(signum)
        is_default = old in (signal.SIG_DFL, signal.default_int_handler)
        if old is _handle or (is_default and (handler is None or signum.name not in _USER_SIGNALS)):
            previous[signum] = signal.signal(signum, handler or _handle)
    try:
        yield
    finally:
        for signum, old in previous.items():
            signal.signal(signum, old)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Let a signal raise KeyboardInterrupt only in `check_signals` within the block, or at its end."""
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
    global _pending
    if _pending and threading.current_thread() is threading.main_thread():
        _pending = False
        raise KeyboardInterrupt


@contextlib.contextmanager
def resumable(saved: str) -> Iterator[None]:
    """Like `uninterrupted`, for work that can be resumed: on a signal, print what is saved and how to resume.

    saved: a clause about the saved work, such as "finished shards are kept".
    """
    try:
        with uninterrupted():
            yield
    except KeyboardInterrupt:
        echo(f"stopped; {saved}; run the same command to resume", file=sys.stderr)
        raise


def _handle(signum: int, frame: FrameType | None) -> None:
    global _pending, _stopping
    if not _depth or (_stopping and signum == signal.SIGINT):
        os._exit(EXIT_CODE)
    if not _stopping:  # job schedulers may send SIGTERM several times
        _pending = _stopping = True
