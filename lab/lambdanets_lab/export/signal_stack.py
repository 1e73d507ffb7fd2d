"""Protects signal handling from OpenVINO: each openvino.Core sets an alternate signal stack (sigaltstack)."""

import contextlib
import ctypes
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def restore_signal_stack() -> Iterator[None]:
    """Restore this thread's alternate signal stack at the end of the block.

    Each openvino.Core that loads the CPU plugin sets its own stack. Its destructor restores the former stack, but only
    if its own is still set. If the older of two Cores is destroyed first, the destructor of the other restores freed
    memory as the stack, and the next signal crashes the process. After the block, destructors leave the stack alone.
    """
    if sys.platform != "linux":  # OpenVINO sets it only on Linux
        yield
        return
    sigaltstack, former = ctypes.CDLL(None).sigaltstack, ctypes.create_string_buffer(24)  # the size of stack_t
    sigaltstack(None, former)
    try:
        yield
    finally:
        sigaltstack(former, None)
