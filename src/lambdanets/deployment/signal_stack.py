"""Protection of signal handling from OpenVINO, whose cores each set an alternate signal stack (sigaltstack)."""

import contextlib
import ctypes
import sys
from collections.abc import Callable, Iterator


class _Stack(ctypes.Structure):
    """stack_t of sigaltstack(2) on Linux."""

    _fields_ = (("pointer", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


@contextlib.contextmanager
def restore_signal_stack() -> Iterator[Callable[[], None]]:
    """Restore this thread's alternate signal stack at the end of the block, and when the yielded function is called.

    Each openvino.Core that loads the CPU plugin sets a stack of its own, and on destruction sets the former one again
    if its own is still set. Of two cores of which the older one is destroyed first, this leaves freed memory as stack,
    and the next signal crashes the process. Where the former stack has been restored, destruction changes nothing.
    """
    if sys.platform != "linux":  # only there OpenVINO sets it
        yield lambda: None
        return
    sigaltstack = ctypes.CDLL(None, use_errno=True).sigaltstack
    former = _Stack()
    sigaltstack(None, ctypes.byref(former))

    def restore() -> None:
        sigaltstack(ctypes.byref(former), None)

    try:
        yield restore
    finally:
        restore()
