"""Limits of the memory of the process."""

import contextlib
import resource
import sys
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def at_most(max_bytes: int) -> Iterator[None]:
    """Assert that the process needs at most this many bytes more within the block than before it."""
    with contextlib.suppress(OSError):  # on Linux; without it, the peak of an earlier test would hide this one
        Path("/proc/self/clear_refs").write_text("5")
    before = _peak()
    yield
    assert _peak() - before < max_bytes


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
