"""Progress on standard error: a tqdm bar on a terminal, else one line every 30 seconds."""

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

from lambdanets.terminal import echo, printable

Item = TypeVar("Item")
SECONDS_PER_LINE = 30.0


class Progress:
    """A context manager that shows progress on standard error within its block.

    Off a terminal a thread prints a line every SECONDS_PER_LINE, also while one item takes longer. Without a total
    there is no bar, and the lines have the elapsed time. initial: items already done. bar: False if standard output
    shows each item. note: text on the current item, or a function that returns it for each line; may be set any time.
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
        if not sys.stderr.isatty() or self.total is None:
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
        if self._bar is not None:
            self._bar.close()

    def update(self, count: int = 1) -> None:
        """Count `count` more items as done."""
        self.done += count
        if self._bar is not None:
            self._bar.update(count)

    def set_note(self, note: str, label: str | None = None) -> None:
        """Set the note, and the label if given."""
        self.note = note
        self.label = self.label if label is None else label
        if self._bar is not None:
            self._bar.set_description(printable(self.label), refresh=False)
            self._bar.set_postfix_str(printable(note))

    def line(self) -> str:
        """The progress as one line of text."""
        seconds = time.monotonic() - self._started
        note = self.note() if callable(self.note) else self.note
        parts = [note] if note else []
        if self.total is None:
            return f"{self.label}: {', '.join([*parts, f'{duration(seconds)} so far'])}"
        rate = (self.done - self._initial) / max(seconds, 1e-9)
        if rate and not callable(self.note):
            parts = [f"{rate:.3g} {self.unit}/s, {duration((self.total - self.done) / rate)} left", *parts]
        return f"{self.label}: {', '.join([f'{self.done:,} of {self.total:,} {self.unit}', *parts])}"

    def _print_lines(self) -> None:
        stream = sys.stderr
        while not self._stopped.wait(SECONDS_PER_LINE):
            echo(self.line(), file=stream)


def track(items: Iterable[Item], label: str, total: int, unit: str, *, bar: bool = True) -> Iterator[Item]:
    """Iterate over the items, showing progress."""
    with Progress(label, total, unit, bar=bar) as progress:
        for item in items:
            yield item
            progress.update()


def duration(seconds: float) -> str:
    """Seconds in readable units: 42 s, 3 min, 2 h 05 min, 3 d 4 h."""
    minutes = seconds / 60
    if seconds < 60:
        return f"{seconds:.0f} s"
    if minutes < 60:
        return f"{minutes:.0f} min"
    if minutes < 48 * 60:
        return f"{int(minutes // 60)} h {int(minutes % 60):02} min"
    return f"{int(minutes // 1440)} d {int(minutes % 1440 // 60)} h"
