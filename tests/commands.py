"""Runs commands of the command line, and reads what they write."""

from pathlib import Path
from typing import Any

from lambdanets.cli import main


def succeed(*arguments: Any) -> None:
    """Run a command that must exit with code 0."""
    assert main([str(argument) for argument in arguments]) == 0


def error_lines(capsys: Any, *arguments: Any) -> list[str]:
    """Run a command that must exit with code 2, and return the lines of stderr, of which the last is the message."""
    assert main([str(argument) for argument in arguments]) == 2
    output: list[str] = capsys.readouterr().err.strip().splitlines()
    assert "Traceback" not in "".join(output)
    assert output[-1].startswith("lambdanets: ")
    return output


def fail(capsys: Any, *arguments: Any) -> str:
    """Run a command that must exit with code 2, and return the last line of stderr."""
    return error_lines(capsys, *arguments)[-1]


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of each file of a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
