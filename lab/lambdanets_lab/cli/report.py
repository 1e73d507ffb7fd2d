"""`lambdanets report`."""

from pathlib import Path
from typing import Annotated

from lambdanets.cli.options import POSITIONAL, parse
from lambdanets.errors import InputError
from lambdanets.records import record
from lambdanets.terminal import echo


@record
class Report:
    """Print box and mask AP of finished detection runs in percent as Markdown, with gains over the first run."""

    runs: Annotated[tuple[Path, ...], POSITIONAL] = ()
    """Folders of finished runs; runs that differ only in the seed are averaged. Gains are relative to the first row."""


def main(arguments: list[str]) -> None:
    """Run `lambdanets report`."""
    options = parse(Report, arguments, "report")
    if not options.runs:
        raise InputError("RUNS must be at least one folder of a finished run, got none")
    from lambdanets_lab.detection_report import report

    echo(*report(options.runs).split("\n"))
