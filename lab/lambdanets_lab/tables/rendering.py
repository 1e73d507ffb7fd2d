"""Format comparisons with the paper as text tables or Markdown."""

import itertools
from collections.abc import Sequence

from lambdanets.terminal import text_table
from lambdanets_lab.markdown import markdown_table
from lambdanets_lab.tables.measured import Measured
from lambdanets_lab.tables.paper import TABLES
from lambdanets_lab.tables.verdicts import MEASURED, NOT_MEASURED, NOT_REPRODUCED, OTHER_NETWORK, Comparison, summary


def to_text(comparisons: Sequence[Comparison], measured: Measured) -> str:
    parts = []
    for name, table in itertools.groupby(comparisons, lambda comparison: comparison.paper.table):
        header, rows, notes = _cells(list(table))
        parts += [_heading(name), "", text_table([header, *rows]), "", *(f"  {note}" for note in notes), ""]
    return "\n".join([*parts, *_summary_lines(comparisons, measured)])


def to_markdown(comparisons: Sequence[Comparison], measured: Measured) -> str:
    """Format a page with one section per table and a paragraph that explains it."""
    parts = ["# The paper's tables", "", _OPENING, "", *_summary_lines(comparisons, measured), ""]
    for name, table in itertools.groupby(comparisons, lambda comparison: comparison.paper.table):
        header, rows, notes = _cells(list(table))
        parts += [f"## {_heading(name)}", "", TABLES[name]["text"], ""]
        parts += [markdown_table(header, *rows), "", *(f"- {note}" for note in notes), *([""] if notes else [])]
        if name in measured.figures:
            parts += [f"![{TABLES[name]['title']}]({measured.figures[name]})", ""]
    return "\n".join(parts).rstrip("\n") + "\n"


# Marks in the headers of columns that have no number of ours.
_MARKS = {
    NOT_REPRODUCED: ("†", "the paper's, not reproduced"),
    NOT_MEASURED: ("‡", "the paper's, on TPUs; not measured here (see `lambdanets benchmark tables`)"),
}
_OPENING = """\
    lambdanets tables                                   # all tables
    lambdanets tables 12                                # one table
    lambdanets tables --out tables.md                   # write them into a file, as Markdown
    lambdanets benchmark tables --tables 12 --out speed # measure speed and peak memory; all tables take hours on a CPU
    lambdanets tables 12 --measured speed/results.json  # show these next to the paper's, with ratios to a baseline
    lambdanets tables --figures figures                 # accuracy over time (Figure 4), FLOPs over scope (Table 10)

The tables of the paper (Bello, ICLR 2021), with our numbers next to the paper's. Parameters, FLOPs and the
multiply-adds of complexities are counted, memory is computed by the paper's formulas. Accuracies are the paper's; they
were not reproduced. Numbers in brackets refer to the notes below a table. This command generates the page:

    lambdanets tables --measured experiments/results/xeon-2-cores/tables/*.json --figures docs/tables \\
        --out docs/tables.md"""


def _heading(name: str) -> str:
    title = TABLES[name]["title"]
    return f"Table {name}. {title}" if name.isdigit() else title


def _summary_lines(comparisons: Sequence[Comparison], measured: Measured) -> list[str]:
    return [f"{summary(comparisons)}.", *([f"Speeds measured on {measured.machine}."] if measured.machine else [])]


def _cells(comparisons: Sequence[Comparison]) -> tuple[list[str], list[list[str]], list[str]]:
    """Return header, rows and notes of one table: each column of the paper, then ours and the verdict, if any."""
    names = list(dict.fromkeys(c.paper.column for c in comparisons))
    columns = {name: [c for c in comparisons if c.paper.column == name] for name in names}
    compared = [name for name in names if any(c.ours is not None for c in columns[name])]
    units = {name: {c.paper.unit for c in columns[name]} - {""} for name in names}
    header = [""]
    for name in names:
        unit = f" ({min(units[name])})" if len(units[name]) == 1 else ""
        marks = [mark for mark in _MARKS if any(c.verdict == mark for c in columns[name])]
        header.append(" ".join([f"{name}{unit}", *(_MARKS[mark][0] for mark in marks)]))
        header += ["ours", "verdict"] if name in compared else []
    notes: list[str] = []
    rows = []
    for row in dict.fromkeys(c.paper.row for c in comparisons):
        cells = [row]
        for name in names:
            comparison = next((c for c in columns[name] if c.paper.row == row), None)
            unit = f" {comparison.paper.unit}" if comparison is not None and len(units[name]) > 1 else ""
            cells.append("" if comparison is None else f"{comparison.paper.text()}{unit}")
            if name in compared:
                cells += ["", ""] if comparison is None else _our_cells(comparison, unit, notes)
        rows.append(cells)
    notes += [
        f"{sign} {meaning}"
        for verdict, (sign, meaning) in _MARKS.items()
        if any(verdict == c.verdict for c in comparisons)
    ]
    return header, rows, notes


def _our_cells(comparison: Comparison, unit: str, notes: list[str]) -> list[str]:
    """Return the cells of our number and the verdict; append a new note to notes."""
    ours, verdict = comparison.ours, comparison.verdict
    number = "" if ours is None else ours if isinstance(ours, str) else f"{ours:#.5g}{unit}"
    if not comparison.note:
        return [number, "" if ours is None else verdict]
    if verdict == MEASURED:
        return [number, comparison.note]
    reason = f"{verdict}: {comparison.note}"
    index = next((i for i, note in enumerate(notes, 1) if note.partition(" ")[2] == reason), None)
    if index is None:
        index = len(notes) + 1
        notes.append(f"[{index}] {reason}")
    return [number, f"{verdict if verdict == OTHER_NETWORK else 'no'} [{index}]"]
