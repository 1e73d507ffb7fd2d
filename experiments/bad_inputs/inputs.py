"""An input of the command: its arguments, the files that it needs, and what must come of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Make = Callable[[Path, Mapping[str, Any]], object]
Check = Callable[[Path], object]


@dataclass(frozen=True)
class Input:
    """A command, and what must come of it."""

    command: str
    """Arguments as a shell splits them; {name} stands for one of the `Places`, {here} for the folder it works in."""
    exit_code: int
    says: str
    """A regular expression, of the last line on stderr where the exit code is 2, else of all that was printed."""
    make: tuple[Make, ...] = ()
    """Called with the folder and the places, they write the files that the input is about."""
    lines: str | None = None
    """A regular expression of each line that may stand beside the one sentence."""
    tells: str | None = None
    """And of one that must."""
    leaves: str | None = None
    """A regular expression of each path that may be left in the folder though the input was refused."""
    check: Check | None = None
    """Looks at what an accepted input wrote, and raises AssertionError."""
    report: bool = False
    """Whether an exit code of 2 comes with a report on stdout and no sentence, as of shards that are not whole."""
    seconds: float = 0.0
    """That it may take, where those are more than other inputs may."""
    during: Callable[[int, Path], object] | None = None
    """Called with the process's id while it runs, such as to send it a signal."""
    again: bool = False
    """Whether the same command is given once more, and must then end with exit code 0."""
    alone: bool = False
    """Run `python -m lambdanets` in place of a fork."""
    name: str = ""

    def __str__(self) -> str:
        return f"{self.command}{f'  ({self.name})' if self.name else ''}"


def refused(command: str, says: str, *make: Make, **more: Any) -> Input:
    """An input that must be refused in one sentence, with exit code 2, and leave nothing."""
    return Input(command, 2, says, make, **more)


def accepted(command: str, says: str, *make: Make, **more: Any) -> Input:
    """An input that is odd and must be worked on nevertheless, with exit code 0."""
    return Input(command, 0, says, make, **more)
