"""Progress on standard error: on a terminal a line that changes, otherwise one line every 30 seconds."""

import sys
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from tqdm import tqdm

from lambdanets.signals import check_signals
from lambdanets.terminal import echo

Item = TypeVar("Item")
SECONDS_PER_LINE, SECONDS_PER_CHANGE = 30.0, 0.2


class Progress(tqdm):
    """A bar of tqdm without the bar.

    total: number of items. initial: number of items that were done before.
    """

    monitor_interval = 0  # no thread

    def __init__(self, label: str, total: int, unit: str, *, initial: int = 0, disable: bool = False) -> None:
        self._is_terminal = sys.stderr.isatty()
        seconds = SECONDS_PER_CHANGE if self._is_terminal else SECONDS_PER_LINE
        super().__init__(
            desc=label,
            total=total,
            unit=f" {unit}",
            initial=initial,
            disable=disable,
            file=sys.stderr if self._is_terminal else _Lines(),
            bar_format="{desc}: {n} of {total}{unit}, {rate_fmt}, {remaining} left{postfix}",
            mininterval=seconds,
            delay=seconds,
            miniters=1,
            leave=False,
            position=None if self._is_terminal else 0,  # otherwise tqdm moves the cursor for a loop within another
            dynamic_ncols=True,
        )

    @staticmethod
    def format_meter(*args: Any, **options: Any) -> str:
        """Format the line; of slow loops, tqdm writes "2.00s/ images"."""
        return tqdm.format_meter(*args, **options).replace("s/ ", " s/", 1)

    def note(self, note: str) -> None:
        """Set a text about the current item, without control characters."""
        self.set_postfix_str(note, refresh=self._is_terminal)


class _Lines:
    """A file for tqdm that prints each state of its line as a line of its own."""

    def write(self, text: str) -> None:
        if text.strip():
            echo(text.strip(), file=sys.stderr)

    def flush(self) -> None:
        pass


def track(items: Iterable[Item], label: str, total: int, unit: str) -> Iterator[Item]:
    """Iterate over the items and show progress. Raises KeyboardInterrupt if a signal has arrived."""
    with Progress(label, total, unit) as progress:
        for item in items:
            yield item
            check_signals()
            progress.update()
