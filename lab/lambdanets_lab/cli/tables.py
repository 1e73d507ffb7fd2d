"""`lambdanets tables`: compare the paper's tables with this package's numbers, measurements and figures."""

import os
import sys
from pathlib import Path
from typing import Annotated

from lambdanets.cli.options import POSITIONAL, parse
from lambdanets.errors import InputError
from lambdanets.files import atomic_write
from lambdanets.progress import track
from lambdanets.records import record
from lambdanets.terminal import echo


@record
class Tables:
    """Show the paper's tables, with this package's numbers next to the paper's."""

    tables: Annotated[tuple[str, ...], POSITIONAL] = ()
    """Table numbers from 2 to 20, E.2 for the memory in Sec. E.2, and fn2 for that in footnote 2; all by default."""
    out: Path | None = None
    """Markdown file to write or overwrite; the terminal by default."""
    figures: Path | None = None
    """Folder for frontier.png (Figure 4) and scope.png (Table 10); no figures by default."""
    measured: tuple[Path, ...] = ()
    """results.json of `lambdanets benchmark tables`, to show with the paper's speeds."""

    def __post_init__(self) -> None:
        if self.out is not None and not (self.out.suffix.lower() == ".md" and self.out.parent.is_dir()):
            raise InputError(f"--out must be a file .md in an existing folder, got {self.out}")


def main(arguments: list[str]) -> None:
    """Run `lambdanets tables`."""
    options = parse(Tables, arguments, "tables")
    from lambdanets_lab.tables.paper import select_numbers

    numbers = select_numbers(options.tables)
    from lambdanets_lab.tables.measured import read
    from lambdanets_lab.tables.plots import draw
    from lambdanets_lab.tables.rendering import to_markdown, to_text
    from lambdanets_lab.tables.verdicts import compare

    measured = read(options.measured)
    lines = compare(track(numbers, "counting", len(numbers), "numbers"), measured.values)
    if options.figures is not None:
        for table, path in draw(options.figures, measured.values, measured.machine).items():
            echo(f"written to {path}", file=sys.stderr)
            relative_to = options.out.parent if options.out is not None else Path()
            measured.figures[table] = Path(os.path.relpath(path, relative_to)).as_posix()
    if options.out is None:
        echo(*to_text(lines, measured).split("\n"))
    else:
        atomic_write(options.out, to_markdown(lines, measured))
