"""Signal handling of the command line: each of SIGINT, SIGTERM and SIGHUP ends a command with exit code 130.

Outside of `interruptible` blocks, a signal ends the process immediately and without a message. Inside them, the first
signal raises KeyboardInterrupt, so that finished work can be saved; after that, only SIGINT raises again. Only the
command line installs handlers. Programs that import the package keep their own. While a run trains,
`training/callbacks.py` has handlers of its own, which stop it after a step.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from lambdanets.terminal import echo

EXIT_CODE = 130
SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))

# Only the main thread handles signals. These are the depths of the nested blocks that it is in.
_interruptible_depth = 0
_deferred_depth = 0
_pending: int | None = None  # the last signal received in a `deferred` block
_interrupted = False  # whether a signal has raised KeyboardInterrupt


def handled_signals() -> list[signal.Signals]:
    """Return SIGNALS without those that the parent process ignores: SIGHUP under nohup, SIGINT in a background job."""
    return [signum for signum in SIGNALS if signal.getsignal(signum) is not signal.SIG_IGN]


@contextlib.contextmanager
def handle_signals() -> Iterator[None]:
    """Install the signal handlers of the command line within the block."""
    global _interrupted, _pending
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous: dict[Any, Any] = {}
    previous_hook = sys.unraisablehook
    _interrupted, _pending = False, None
    try:
        for signum in (*handled_signals(), signal.SIGALRM):
            previous[signum] = signal.signal(signum, _handle)
        sys.unraisablehook = lambda ignored: (
            _raise_again() if _is_raised_by_signal(ignored.exc_type) else previous_hook(ignored)
        )
        yield
    finally:
        sys.unraisablehook = previous_hook
        for signum, handler in previous.items():
            signal.signal(signum, handler)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Make signals raise KeyboardInterrupt within the block."""
    global _interruptible_depth
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _interruptible_depth += 1
    try:
        yield
    finally:
        _interruptible_depth -= 1


@contextlib.contextmanager
def resumable(saved: str) -> Iterator[None]:
    """Like `interruptible`, for work that can be resumed: on a signal, print what is saved and how to resume.

    saved: a clause about the saved work, such as "finished shards are kept".
    """
    try:
        with interruptible():
            yield
    except KeyboardInterrupt:
        echo(f"stopped; {saved}; run the same command to resume", file=sys.stderr)
        raise


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Defer signals to the end of the block, which must be short."""
    global _deferred_depth, _pending
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _deferred_depth += 1
    try:
        yield
    finally:
        _deferred_depth -= 1
        if _pending is not None and not _deferred_depth:
            signum, _pending = _pending, None
            _handle(signum, None)


@contextlib.contextmanager
def blocked() -> Iterator[None]:
    """Block signals within the block. A process that is forked in it keeps them blocked."""
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def exit_with_parent() -> None:
    """Make this worker process exit when its parent process exits."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait_and_exit() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait_and_exit, daemon=True).start()


def interrupted() -> bool:
    """Whether a signal has raised KeyboardInterrupt. Exceptions after it are consequences, not errors."""
    return _interrupted


def _is_raised_by_signal(error: type[BaseException] | None) -> bool:
    return _interrupted and error is KeyboardInterrupt


def _raise_again() -> None:
    """Raise KeyboardInterrupt again with a timer. Python ignores it in __del__ and in fork callbacks."""
    global _interrupted
    _interrupted = False
    signal.setitimer(signal.ITIMER_REAL, 0.01)


def _handle(signum: int, frame: FrameType | None) -> None:
    global _interrupted, _pending
    if _deferred_depth:
        _pending = signum
    elif _interrupted:
        if signum == signal.SIGINT:
            raise KeyboardInterrupt
    elif _interruptible_depth:
        _interrupted = True
        raise KeyboardInterrupt
    else:
        os._exit(EXIT_CODE)
