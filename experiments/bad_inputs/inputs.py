"""An input of the command: its arguments, files, and expected result."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Make = Callable[[Path, Mapping[str, Any]], object]
Check = Callable[[Path], object]


@dataclass(frozen=True)
class Input:
    """A command and its expected result."""

    command: str
    """Arguments as a shell splits them; {name} is one of the `Places`, {here} the working folder."""
    exit_code: int
    says: str
    """Regular expression for the last line on stderr if the exit code is 2, else for the whole output."""
    make: tuple[Make, ...] = ()
    """Functions of the folder and the places that write the input's files."""
    lines: str | None = None
    """Regular expression for additional lines that are allowed besides the error sentence."""
    tells: str | None = None
    """Regular expression for an additional line that is required."""
    leaves: str | None = None
    """Regular expression for paths that a rejected input may leave in the folder."""
    check: Check | None = None
    """Checks the output of an accepted input, and raises AssertionError."""
    report: bool = False
    """Whether exit code 2 comes with a report on stdout and no sentence, as `shard --verify` for damaged shards."""
    seconds: float = 0.0
    """Time limit, if it exceeds the general one."""
    during: Callable[[int, Path], object] | None = None
    """Called with the process id while it runs, for example to send a signal."""
    again: bool = False
    """Whether to run the command again, which must then end with exit code 0."""
    alone: bool = False
    """Run `python -m lambdanets` instead of a fork."""
    name: str = ""

    def __str__(self) -> str:
        return f"{self.command}{f'  ({self.name})' if self.name else ''}"


def refused(command: str, says: str, *make: Make, **more: Any) -> Input:
    """An input that must be rejected in one sentence, with exit code 2, and leave no file."""
    return Input(command, 2, says, make, **more)


def accepted(command: str, says: str, *make: Make, **more: Any) -> Input:
    """An unusual input that must be processed, with exit code 0."""
    return Input(command, 0, says, make, **more)
