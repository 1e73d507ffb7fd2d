"""An input of the command: its arguments, files, and expected result."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Setup = Callable[[Path, Mapping[str, Any]], object]
Check = Callable[[Path], object]


@dataclass(frozen=True)
class Input:
    """A command and its expected result."""

    command: str
    """Arguments, split as by a shell; {name} is replaced by the fixture of that name, {cwd} by the working folder."""
    exit_code: int
    output: str
    """Regular expression that matches the last line of stderr if the exit code is 2, else any of the output."""
    setup: tuple[Setup, ...] = ()
    """Functions of the working folder and the fixtures; they write the input's files."""
    allowed_lines: str | None = None
    """Regular expression for lines that may be printed in addition to the error message."""
    required_line: str | None = None
    """Regular expression for a line that must be printed in addition to the error message."""
    allowed_files: str | None = None
    """Regular expression for paths that a rejected input may create or change in the folder."""
    check: Check | None = None
    """Function of the working folder that raises AssertionError if the written files are invalid."""
    prints_report: bool = False
    """Whether exit code 2 comes with a report on stdout instead of an error message (`shard --verify`)."""
    time_limit: float = 0.0
    """Seconds; used if longer than the general limit."""
    while_running: Callable[[int, Path], object] | None = None
    """Function of the process id and the working folder, called after the start, for example to send a signal."""
    rerun: bool = False
    """Whether to run the command a second time, which must end with exit code 0."""
    new_process: bool = False
    """Run `python -m lambdanets` instead of a fork."""
    name: str = ""

    def __str__(self) -> str:
        return f"{self.command}{f'  ({self.name})' if self.name else ''}"


def rejected(command: str, output: str, *setup: Setup, **fields: Any) -> Input:
    """An input that must be rejected with a one-line error message and exit code 2, and leave no file."""
    return Input(command, 2, output, setup, **fields)


def accepted(command: str, output: str, *setup: Setup, **fields: Any) -> Input:
    """An unusual but valid input, which must end with exit code 0."""
    return Input(command, 0, output, setup, **fields)
