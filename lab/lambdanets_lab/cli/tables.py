"""`lambdanets tables`: compare the paper's tables with this package's numbers, measurements and figures."""

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

from lambdanets.cli.options import POSITIONAL, parse
from lambdanets.errors import InputError
from lambdanets.files import atomic_write, encode_utf8
from lambdanets.progress import track
from lambdanets.records import record
from lambdanets.terminal import echo


@record
class Tables:
    """Show the paper's tables, with this package's numbers next to the paper's."""

    tables: Annotated[tuple[str, ...], POSITIONAL] = ()
    """Table numbers from 2 to 20, E.2 for the memory in Sec. E.2, and fn2 for that in footnote 2; all by default."""
    check: bool = False
    """Print how many numbers match the paper, and those that do not; if there are any, exit with code 1."""
    format: Literal["text", "markdown"] = "text"
    """Output format."""
    out: Path | None = None
    """File to write or overwrite; by default the terminal."""
    figures: Path | None = None
    """Folder for frontier.png (Figure 4) and scope.png (Table 10); no figures by default."""
    measured: tuple[Path, ...] = ()
    """results.json of `lambdanets benchmark tables`, to show with the paper's speeds."""

    def __post_init__(self) -> None:
        if self.check and (self.measured or self.out is not None or self.format != "text"):
            raise InputError("--check prints only a summary; remove --measured, --out and --format")
        if self.figures is not None and self.figures.exists() and not self.figures.is_dir():
            raise InputError(f"--figures must be a folder, got {self.figures}")
        if self.out is not None and not self.out.parent.is_dir():
            raise InputError(f"--out must be in an existing folder, got {self.out}")


def main(arguments: list[str]) -> int:
    """Run `lambdanets tables` and return its exit code: 1 for a failed check, else 0."""
    options = parse(Tables, arguments, "tables")
    from lambdanets_lab.tables.paper import select_numbers

    numbers = select_numbers(options.tables)
    from lambdanets_lab.tables.measured import read
    from lambdanets_lab.tables.plots import draw
    from lambdanets_lab.tables.rendering import FORMATTERS
    from lambdanets_lab.tables.verdicts import DIFFERS, compare, summary

    measured = read(options.measured)
    lines = compare(track(numbers, "counting", len(numbers), "numbers"), measured.values)
    if options.figures is not None:
        for table, path in draw(options.figures, measured.values, measured.machine).items():
            echo(f"written to {path}", file=sys.stderr)
            relative_to = options.out.parent if options.out is not None else Path()
            measured.figures[table] = Path(os.path.relpath(path, relative_to)).as_posix()
    if options.check:
        for line in lines:
            if line.verdict == DIFFERS:
                ours = line.ours if isinstance(line.ours, str) else f"{line.ours:.5g}"
                paper = line.paper
                echo(f"table {paper.table}, {paper.row}, {paper.column}: {paper.text()} in the paper, {ours} ours")
        echo(*summary(lines).split("\n"))
        return int(any(line.verdict == DIFFERS for line in lines))
    text = FORMATTERS[options.format](lines, measured)
    if options.out is None:
        echo(*text.rstrip("\n").split("\n"))
    else:
        atomic_write(options.out, encode_utf8(text))
    return 0
