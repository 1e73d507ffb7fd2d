"""Handling of SIGINT, SIGTERM and SIGHUP: every command exits with code 130 on each of them.

Outside of `interruptible` blocks a signal exits at once, without a message. Within them the first signal raises
KeyboardInterrupt, so that finished work is saved; during this only SIGINT raises again. Only the command line installs
handlers: as a library the package leaves signals alone.
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
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# Depths of nested blocks in the main thread, the only one that handles signals.
_interruptible = 0
_deferred = 0
_pending: int | None = None  # the signal received in a deferred block
_interrupted = False


def handled_signals() -> list[signal.Signals]:
    """SIGNALS except those that the parent process made ignored: SIGHUP under nohup, SIGINT in a shell's background."""
    return [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]


@contextlib.contextmanager
def handling() -> Iterator[None]:
    """Within the block, the command line's signal handlers are installed."""
    global _interrupted, _pending
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous: dict[Any, Any] = {}
    hook = sys.unraisablehook
    _interrupted, _pending = False, None
    try:
        for number in (*handled_signals(), signal.SIGALRM):
            previous[number] = signal.signal(number, _handle)
        sys.unraisablehook = lambda dropped: _raise_again() if _is_ours(dropped.exc_type) else hook(dropped)
        yield
    finally:
        sys.unraisablehook = hook
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Within the block, a signal raises KeyboardInterrupt."""
    global _interruptible
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _interruptible += 1
    try:
        yield
    finally:
        _interruptible -= 1


@contextlib.contextmanager
def resumable(kept: str) -> Iterator[None]:
    """`interruptible`, for work that the same command resumes; on a signal, print `kept` and how to resume."""
    try:
        with interruptible():
            yield
    except KeyboardInterrupt:
        echo(f"stopped; {kept}; run the same command to resume", file=sys.stderr)
        raise


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Within the block, signals are deferred to its end; for short sections that must not be interrupted."""
    global _deferred, _pending
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _deferred += 1
    try:
        yield
    finally:
        _deferred -= 1
        if _pending is not None and not _deferred:
            number, _pending = _pending, None
            _handle(number, None)


@contextlib.contextmanager
def blocked() -> Iterator[None]:
    """Within the block, signals are blocked; a process forked in it keeps them blocked until it unblocks them."""
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def restore_default_handlers() -> None:
    """In a worker forked while signals were `blocked`: restore the default handlers and unblock the signals."""
    for number in handled_signals():
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def exit_with_parent() -> None:
    """Make this worker process exit when its parent process has exited."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()


def interrupted() -> bool:
    """Whether a signal raised KeyboardInterrupt; later exceptions are consequences of it, not errors."""
    return _interrupted


def _is_ours(error: type[BaseException] | None) -> bool:
    return _interrupted and error is KeyboardInterrupt


def _raise_again() -> None:
    """Raise KeyboardInterrupt again, from a timer, after Python ignored it, as in __del__ or a fork callback."""
    global _interrupted
    _interrupted = False
    signal.setitimer(signal.ITIMER_REAL, 0.01)


def _handle(number: int, frame: FrameType | None) -> None:
    global _interrupted, _pending
    if _deferred:
        _pending = number
    elif _interrupted:
        if number == signal.SIGINT:
            raise KeyboardInterrupt
    elif _interruptible:
        _interrupted = True
        raise KeyboardInterrupt
    else:
        os._exit(EXIT_CODE)
