"""SIGINT, SIGTERM and SIGHUP: every command ends the same way on all of them, with exit code 130.

Until a command has begun what it must clean up or can resume, a signal ends the process at once and quietly. Within
`interruptible` it raises KeyboardInterrupt, once, so that what is finished is kept; while that is done only another
Ctrl-C counts. Handlers are those of the command line: as a library the package leaves signals alone.
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

from lambdanets.terminal import say

EXIT_CODE = 130
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# Depths of nested blocks, in the main thread, which alone handles signals.
_interruptible = 0
_deferred = 0
_pending: int | None = None  # the signal that came in a deferred block
_interrupted = False


def heeded() -> list[signal.Signals]:
    """SIGNALS, but for those that were ignored when the process began: SIGHUP by nohup, SIGINT by a shell's `&`."""
    return [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]


@contextlib.contextmanager
def handled() -> Iterator[None]:
    """Handle signals for the command line, and put the handlers back that were there before."""
    global _interrupted, _pending
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[Any, Any] = {}
    hook = sys.unraisablehook
    _interrupted, _pending = False, None
    try:
        for number in (*heeded(), signal.SIGALRM):
            before[number] = signal.signal(number, _handle)
        sys.unraisablehook = lambda what: _raise_again() if _is_ours(what.exc_type) else hook(what)
        yield
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """A signal within the block raises KeyboardInterrupt."""
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
    """`interruptible`, for what the same command resumes; on a signal it says what is kept, and that."""
    try:
        with interruptible():
            yield
    except KeyboardInterrupt:
        say(f"stopped; {kept}; give the same command to resume", file=sys.stderr)
        raise


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """A signal within the block counts when it ends; for what is short and must not be cut."""
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
    """A signal within the block waits for its end, and in a process forked within it until that one unblocks it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_at_once() -> None:
    """In a worker process, forked while signals were `blocked`: they end it, but for those that are ignored."""
    for number in heeded():
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def end_with_parent() -> None:
    """In a worker process: it ends once the process that started it has, whatever it does then."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()


def interrupted() -> bool:
    """Whether KeyboardInterrupt was raised for a signal: what reaches the command line then is no error."""
    return _interrupted


def _is_ours(error: type[BaseException] | None) -> bool:
    return _interrupted and error is KeyboardInterrupt


def _raise_again() -> None:
    """KeyboardInterrupt came where Python drops exceptions, such as __del__ or a callback of fork: raise it soon."""
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
