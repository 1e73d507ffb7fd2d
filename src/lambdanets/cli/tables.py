"""`lambdanets tables`: compare the paper's tables with this package's numbers, measurements and figures."""

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import tyro

from lambdanets.cli.arguments import parse
from lambdanets.cli.option_groups import Groups
from lambdanets.errors import InputError
from lambdanets.files import atomic_write, encode_utf8
from lambdanets.progress import track
from lambdanets.terminal import echo


@dataclass(frozen=True)
class Tables:
    """Options of tables."""

    GROUPS: ClassVar[Groups] = {"measurement": ("measure", "image_size", "batch_size", "repeats")}

    tables: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="[TABLES...]")] = ()
    """Table numbers from 2 to 20, E.2 for the memory in Sec. E.2, and fn2 for that in footnote 2; all by default."""
    check: bool = False
    """Print how many numbers match the paper, and those that do not; if there are any, exit with code 1."""
    format: Literal["text", "markdown", "csv", "json"] = "text"
    """Output format."""
    out: Path | None = None
    """File to write or overwrite; by default the terminal. With --measure, new file for the measurements."""
    figures: Path | None = None
    """Folder for frontier.png (Figure 4) and scope.png (Table 10); no figures by default."""
    measured: tuple[Path, ...] = ()
    """Files of --measure to show with the paper's speeds; for Table 4, also results.json of layer benchmarks."""
    measure: bool = False
    """Measure speed and peak memory of TABLES, by default 4, 5, 10, 12, 13 and 18; takes hours on a CPU."""
    batch_size: int = 4
    """With --measure: images per batch."""
    repeats: int = 3
    """With --measure: timed runs per row."""
    image_size: int | None = None
    """With --measure: image size of all rows, pixels; by default that of each row in the paper."""

    def __post_init__(self) -> None:
        _check(self)


def main(arguments: list[str]) -> int:
    """Run `lambdanets tables` and return its exit code: 1 for a failed check, else 0."""
    description = "Show the paper's tables, with this package's numbers next to the paper's."
    options = parse(Tables, arguments, prog="lambdanets tables", description=description)
    from lambdanets.evidence.tables.paper import select_numbers

    numbers = select_numbers(options.tables)
    from lambdanets.evidence.tables.measured import read
    from lambdanets.evidence.tables.plots import draw
    from lambdanets.evidence.tables.rendering import FORMATTERS
    from lambdanets.evidence.tables.speed import TABLES, Plan, measure
    from lambdanets.evidence.tables.verdicts import DIFFERS, compare, summary

    sources = options.measured
    if options.measure:
        source = options.out or Path(f"measured-{time.strftime('%Y%m%d-%H%M%S')}.json")
        names = options.tables or tuple(TABLES)
        measure(Plan(names, options.batch_size, options.repeats, options.image_size), source)
        sources = (source,)
    measured = read(sources)
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
    if options.out is None or options.measure:
        echo(*text.rstrip("\n").split("\n"))
    else:
        atomic_write(options.out, encode_utf8(text))
    return 0


def _check(options: Tables) -> None:
    """Raise InputError for invalid options and combinations."""
    for name in ("batch_size", "repeats", "image_size"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise InputError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
        default = Tables.__dataclass_fields__[name].default
        if value != default and not options.measure:
            raise InputError(f"--{name.replace('_', '-')} needs --measure")
    if options.measure and options.measured:
        raise InputError("--measure and --measured must not be given together; --measured reads earlier measurements")
    if options.check and (options.measure or options.measured or options.out is not None or options.format != "text"):
        raise InputError("--check prints only a summary; remove --measure, --measured, --out and --format")
    if options.figures is not None and options.figures.exists() and not options.figures.is_dir():
        raise InputError(f"--figures must be a folder, got {options.figures}")
    if options.out is not None and not options.out.parent.is_dir():
        raise InputError(f"--out must be in an existing folder, got {options.out}")
