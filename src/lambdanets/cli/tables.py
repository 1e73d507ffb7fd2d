"""`lambdanets tables`: the paper's tables, a check of them, measurements and figures."""

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from lambdanets.cli.arguments import parse
from lambdanets.errors import InputError
from lambdanets.files import atomic_write, printable_bytes
from lambdanets.progress import track
from lambdanets.terminal import say


@dataclass(frozen=True)
class Tables:
    """Which tables, and what to do with them."""

    tables: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="TABLES...")] = ()
    """Numbers of tables, 2 to 20, and E.2 and fn2 for memory told in the text; all if none is given."""
    check: bool = False
    """Print a summary of the numbers that can be counted; exit code 1 if one that should match does not."""
    format: Literal["text", "markdown", "csv", "json"] = "text"
    """How the tables are written."""
    out: Path | None = None
    """File to write instead of the terminal, replaced if it is there; with --measure a new one, for its samples."""
    figures: Path | None = None
    """Folder for frontier.png (Figure 4) and scope.png (Table 10)."""
    measured: tuple[Path, ...] = ()
    """Files that --measure wrote, to show speeds beside the paper's; for Table 4 also results.json of lambdanets
    benchmark layer and memory."""
    measure: bool = False
    """Measure speeds and peak memory of tables 4, 5, 10, 12, 13 and 18, or of those named: hours on a processor."""
    batch_size: int = 4
    """Images a batch, with --measure."""
    repeats: int = 3
    """Timed runs of each row, with --measure."""
    image_size: int | None = None
    """Side of all images, with --measure; by default each row's own."""

    def __post_init__(self) -> None:
        _check(self)


def main(arguments: list[str]) -> int:
    """Run `lambdanets tables` and return its exit code: 1 for a check that fails, else 0."""
    description = "Show the paper's tables with what the models of this package come to beside each figure."
    options = parse(Tables, arguments, prog="lambdanets tables", description=description)
    from lambdanets.evidence.tables.paper import numbers_of

    figures = numbers_of(options.tables)
    from lambdanets.evidence.tables.measured import read
    from lambdanets.evidence.tables.plots import draw
    from lambdanets.evidence.tables.rendering import RENDERINGS
    from lambdanets.evidence.tables.speed import TABLES, Plan, measure
    from lambdanets.evidence.tables.verdicts import DIFFERS, compare, summary

    sources = options.measured
    if options.measure:
        source = options.out or Path(f"measured-{time.strftime('%Y%m%d-%H%M%S')}.json")
        names = options.tables or tuple(TABLES)
        measure(Plan(names, options.batch_size, options.repeats, options.image_size), source)
        sources = (source,)
    measured = read(sources)
    lines = compare(track(figures, "counting", len(figures), "figures"), measured.values)
    if options.figures is not None:
        for table, path in draw(options.figures, measured.values, measured.machine).items():
            say(f"written to {path}", file=sys.stderr)
            beside = options.out.parent if options.out is not None else Path()
            measured.figures[table] = Path(os.path.relpath(path, beside)).as_posix()
    if options.check:
        for line in lines:
            if line.verdict == DIFFERS:
                ours = line.ours if isinstance(line.ours, str) else f"{line.ours:.5g}"
                paper = line.paper
                say(f"table {paper.table}, {paper.row}, {paper.column}: {paper.text()} in the paper, {ours} ours")
        say(*summary(lines).split("\n"))
        return int(any(line.verdict == DIFFERS for line in lines))
    text = RENDERINGS[options.format](lines, measured)
    if options.out is None or options.measure:
        say(*text.rstrip("\n").split("\n"))
    else:
        atomic_write(options.out, printable_bytes(text))
    return 0


def _check(options: Tables) -> None:
    """Raise InputError for options that do not fit, each other or at all."""
    for name in ("batch_size", "repeats", "image_size"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise InputError(f"--{name.replace('_', '-')} must be positive, got {value}")
        usual = Tables.__dataclass_fields__[name].default
        if value != usual and not options.measure:
            raise InputError(f"--{name.replace('_', '-')} needs --measure beside it")
    if options.measure and options.measured:
        raise InputError("--measure and --measured exclude each other: one measures, the other reads what was measured")
    if options.check and (options.measure or options.measured or options.out is not None or options.format != "text"):
        raise InputError(
            "--check prints a summary of what is counted; give no --measure, --measured, --out or --format beside it"
        )
    if options.figures is not None and options.figures.exists() and not options.figures.is_dir():
        raise InputError(f"--figures must be a folder, and {options.figures} is none")
    if options.out is not None and not options.out.parent.is_dir():
        raise InputError(f"--out must be in a folder that exists, got {options.out}")
