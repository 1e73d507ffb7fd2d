"""Progress on standard error: on a terminal a line that changes, otherwise one line every 30 seconds."""

import shutil
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Self, TypeVar

from lambdanets.signals import check_signals
from lambdanets.terminal import echo, printable

Item = TypeVar("Item")
SECONDS_PER_LINE, SECONDS_PER_CHANGE = 30.0, 0.2


class Progress:
    """A context manager that shows progress on standard error within its block.

    A thread writes it, even while an item takes longer.

    total: number of items. initial: number of items that were done before.
    label, note, done: what is shown; may be changed at any time.
    """

    def __init__(self, label: str, total: int = 0, unit: str = "", *, initial: int = 0) -> None:
        self.label, self.total, self.unit, self.note = label, total, unit, ""
        self.done = self._initial = initial
        self._started = time.monotonic()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._started = time.monotonic()
        self._thread = threading.Thread(target=self._show, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()  # it removes the line from the terminal

    def update(self, count: int = 1) -> None:
        """Add `count` to the number of items done. Raises KeyboardInterrupt if a signal has arrived."""
        check_signals()
        self.done += count

    def set_note(self, note: str) -> None:
        """Set the note. Raises KeyboardInterrupt if a signal has arrived."""
        check_signals()
        self.note = note

    def line(self) -> str:
        """Return the progress as one line of text."""
        rate = (self.done - self._initial) / max(time.monotonic() - self._started, 1e-9)
        parts = [f"{self.done:,} of {self.total:,} {self.unit}"]
        if rate:
            left = timedelta(seconds=round((self.total - self.done) / rate))
            parts.append(f"{rate:.3g} {self.unit}/s, {left} left")
        return f"{self.label}: {', '.join([*parts, *([self.note] if self.note else [])])}"

    def _show(self) -> None:
        stream = sys.stderr
        if not stream.isatty():
            while not self._stopped.wait(SECONDS_PER_LINE):
                echo(self.line(), file=stream)
            return
        from tqdm import tqdm

        with tqdm(bar_format="{desc}", leave=False, file=stream) as line:
            while not self._stopped.wait(SECONDS_PER_CHANGE):
                width = shutil.get_terminal_size().columns - 1
                line.set_description_str(printable(self.line())[:width])


def track(items: Iterable[Item], label: str, total: int, unit: str) -> Iterator[Item]:
    """Iterate over the items and show progress."""
    with Progress(label, total, unit) as progress:
        for item in items:
            yield item
            progress.update()
