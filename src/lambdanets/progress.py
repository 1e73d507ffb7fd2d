"""How far a command is: a bar on a terminal; where standard error goes elsewhere, a line every half minute."""

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

from lambdanets.terminal import printable, say

Item = TypeVar("Item")
SECONDS_PER_LINE = 30.0


class Progress:
    """What is under way, on standard error, from entering the block to leaving it. What is done sooner says nothing.

    A line comes every SECONDS_PER_LINE even while a single item takes longer. Without a total there is no bar, and the
    line says how long it has been. initial: items done before. bar: False where standard output shows each item.
    note: what is under way at the moment, or what gives it when a line is due; `note` may be set at any time.
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
        self._begun = time.monotonic()
        self._ended = threading.Event()
        self._bar: Any = None
        self._wants_bar = bar and total is not None

    def __enter__(self) -> Self:
        self._begun = time.monotonic()
        if not sys.stderr.isatty() or self.total is None:
            threading.Thread(target=self._say_lines, daemon=True).start()
        elif self._wants_bar:
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
        self._ended.set()
        if self._bar is not None:
            self._bar.close()

    def update(self, count: int = 1) -> None:
        """So many more items are done."""
        self.done += count
        if self._bar is not None:
            self._bar.update(count)

    def tell(self, note: str, label: str | None = None) -> None:
        """What is under way now."""
        self.note = note
        self.label = self.label if label is None else label
        if self._bar is not None:
            self._bar.set_description(printable(self.label), refresh=False)
            self._bar.set_postfix_str(printable(note))

    def line(self) -> str:
        """How far it is, in words."""
        seconds = time.monotonic() - self._begun
        note = self.note() if callable(self.note) else self.note
        parts = [note] if note else []
        if self.total is None:
            return f"{self.label}: {', '.join([*parts, f'{duration(seconds)} so far'])}"
        rate = (self.done - self._initial) / max(seconds, 1e-9)
        if rate and not callable(self.note):
            parts = [f"{rate:.3g} {self.unit}/s, {duration((self.total - self.done) / rate)} left", *parts]
        return f"{self.label}: {', '.join([f'{self.done:,} of {self.total:,} {self.unit}', *parts])}"

    def _say_lines(self) -> None:
        stream = sys.stderr
        while not self._ended.wait(SECONDS_PER_LINE):
            say(self.line(), file=stream)


def track(items: Iterable[Item], label: str, total: int, unit: str, *, bar: bool = True) -> Iterator[Item]:
    """The items, one by one, with their progress."""
    with Progress(label, total, unit, bar=bar) as progress:
        for item in items:
            yield item
            progress.update()


def duration(seconds: float) -> str:
    """Seconds in the two largest units that say something: 42 s, 3 min, 2 h 05 min, 3 d 4 h."""
    minutes = seconds / 60
    if seconds < 60:
        return f"{seconds:.0f} s"
    if minutes < 60:
        return f"{minutes:.0f} min"
    if minutes < 48 * 60:
        return f"{int(minutes // 60)} h {int(minutes % 60):02} min"
    return f"{int(minutes // 1440)} d {int(minutes % 1440 // 60)} h"
