"""Progress on standard error: a tqdm bar on a terminal, otherwise one line every 30 seconds."""

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

from lambdanets.signals import check_signals
from lambdanets.terminal import echo, printable

Item = TypeVar("Item")
SECONDS_PER_LINE = 30.0
_running: list["Progress"] = []  # those whose block is being executed, the outermost first


class Progress:
    """A context manager that shows progress on standard error within its block.

    If standard error is not a terminal, a thread prints a line every SECONDS_PER_LINE, even while an item takes longer.
    Within the block of another Progress, such as for the tiles of an image, the line of that one shows both.

    total: number of items; if None, there is no bar, and the lines show the elapsed time.
    initial: number of items that were done before.
    bar: False if the command prints each item anyway; then there is no bar.
    note: text about the current item, or a function that returns it; may be changed at any time.
    """

    def __init__(
        self,
        label: str,
        total: int | None = None,
        unit: str = "",
        *,
        initial: int = 0,
        bar: bool = True,
        note: str | Callable[[], str] = "",
    ) -> None:
        self.label, self.total, self.unit = label, total, unit
        self.done = self._initial = initial
        self.note = note
        self._started = time.monotonic()
        self._stopped = threading.Event()
        self._bar: Any = None
        self._shows_bar = bar and total is not None

    def __enter__(self) -> Self:
        self._started = time.monotonic()
        is_nested = bool(_running)
        _running.append(self)
        if not sys.stderr.isatty() or self.total is None:
            if is_nested:
                return self
            threading.Thread(target=self._print_lines, daemon=True).start()
        elif self._shows_bar:
            from tqdm import tqdm

            self._bar = tqdm(
                total=self.total,
                initial=self._initial,
                desc=printable(self.label),
                unit=f" {self.unit}",
                leave=False,
                file=sys.stderr,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        if self in _running:  # training may end it twice
            _running.remove(self)
        if self._bar is not None:
            self._bar.close()

    def update(self, count: int = 1) -> None:
        """Add `count` to the number of items done. Raises KeyboardInterrupt if a signal has arrived."""
        check_signals()
        self.done += count
        if self._bar is not None:
            self._bar.update(count)

    def set_note(self, note: str, label: str | None = None) -> None:
        """Set the note, and the label if given. Raises KeyboardInterrupt if a signal has arrived."""
        check_signals()
        self.note = note
        self.label = self.label if label is None else label
        if self._bar is not None:
            self._bar.set_description(printable(self.label), refresh=False)
            self._bar.set_postfix_str(printable(note))

    def line(self) -> str:
        """Return the progress as one line of text."""
        seconds = time.monotonic() - self._started
        note = self.note() if callable(self.note) else self.note
        parts = [note] if note else []
        if self.total is None:
            return f"{self.label}: {', '.join([*parts, f'{format_duration(seconds)} so far'])}"
        rate = (self.done - self._initial) / max(seconds, 1e-9)
        if rate and not callable(self.note):
            parts = [f"{rate:.3g} {self.unit}/s, {format_duration((self.total - self.done) / rate)} left", *parts]
        return f"{self.label}: {', '.join([f'{self.done:,} of {self.total:,} {self.unit}', *parts])}"

    def _print_lines(self) -> None:
        stream = sys.stderr
        while not self._stopped.wait(SECONDS_PER_LINE):
            echo("; ".join(progress.line() for progress in list(_running)), file=stream)


def track(items: Iterable[Item], label: str, total: int, unit: str, *, bar: bool = True) -> Iterator[Item]:
    """Iterate over the items and show progress."""
    with Progress(label, total, unit, bar=bar) as progress:
        for item in items:
            yield item
            progress.update()


def format_duration(seconds: float) -> str:
    """Format seconds in readable units: 42 s, 3 min, 2 h 05 min, 3 d 4 h."""
    minutes = seconds / 60
    if seconds < 60:
        return f"{seconds:.0f} s"
    if minutes < 60:
        return f"{minutes:.0f} min"
    if minutes < 48 * 60:
        return f"{int(minutes // 60)} h {int(minutes % 60):02} min"
    return f"{int(minutes // 1440)} d {int(minutes % 1440 // 60)} h"
