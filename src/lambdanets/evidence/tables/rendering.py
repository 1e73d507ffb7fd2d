"""Format comparisons with the paper as text tables, Markdown, CSV or JSON."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from lambdanets.evidence.tables.descriptions import PARAGRAPHS, TITLES
from lambdanets.evidence.tables.measured import Measured
from lambdanets.evidence.tables.verdicts import (
    DIFFERS,
    MATCH,
    MEASURED,
    NOT_MEASURED,
    NOT_REPRODUCED,
    NOT_REPRODUCIBLE,
    OTHER_NETWORK,
    Line,
    summary,
)
from lambdanets.text_tables import markdown_table, text_table

NO_MEASUREMENTS = Measured()
FIELDS = ("table", "row", "column", "unit", "paper", "ours", "verdict", "note", "model")


def to_record(line: Line) -> dict[str, Any]:
    """Convert a line to a flat dictionary."""
    paper = line.paper
    values = (paper.table, paper.row, paper.column, paper.unit, paper.value, line.ours, line.verdict)
    return dict(zip(FIELDS, (*values, line.note, line.model), strict=True))


def to_json(lines: Sequence[Line], measured: Measured = NO_MEASUREMENTS) -> str:
    """Format the summary, the machine, one object per line, and the additional measured tables as JSON."""
    content = {
        "summary": summary(lines),
        "measured_on": measured.machine or None,
        "numbers": [to_record(line) for line in lines],
        "additional_tables": {
            name: [asdict(table) for table in tables] for name, tables in measured.additional.items()
        },
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def to_csv(lines: Sequence[Line], measured: Measured = NO_MEASUREMENTS) -> str:
    """Format a header and one row per number of the paper as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, FIELDS, lineterminator="\n")
    writer.writeheader()
    for line in lines:
        writer.writerow(to_record(line))
    return text.getvalue()


def to_text(lines: Sequence[Line], measured: Measured = NO_MEASUREMENTS) -> str:
    """Format tables for the terminal."""
    parts = []
    for name, table_lines in _by_table(lines).items():
        header, rows, notes = _cells(table_lines)
        parts += [_heading(name), "", text_table([header, *rows]), "", *(f"  {note}" for note in notes), ""]
        for table in measured.additional.get(name, []):
            text = text_table([table.header, *table.rows])
            parts += [table.title, "", text, "", *(f"  {note}" for note in table.notes), ""]
    return "\n".join([*parts, *_summary_lines(lines, measured)]) + "\n"


def to_markdown(lines: Sequence[Line], measured: Measured = NO_MEASUREMENTS) -> str:
    """Format a page with one section per table and a paragraph that explains it."""
    parts = ["# The paper's tables", "", _OPENING, "", *_summary_lines(lines, measured), ""]
    for name, table_lines in _by_table(lines).items():
        header, rows, notes = _cells(table_lines)
        parts += [f"## {_heading(name)}", "", PARAGRAPHS[name], ""]
        parts += [markdown_table(header, *rows), "", *(f"- {note}" for note in notes), *([""] if notes else [])]
        if name in measured.figures:
            parts += [f"![{TITLES[name]}]({measured.figures[name]})", ""]
        for table in measured.additional.get(name, []):
            text = markdown_table(table.header, *table.rows)
            parts += [table.title, "", text, "", *(f"- {note}" for note in table.notes), ""]
    return "\n".join(parts).rstrip("\n") + "\n"


FORMATTERS = {"text": to_text, "markdown": to_markdown, "csv": to_csv, "json": to_json}

# Marks in the headers of columns without a number of ours.
_MARKS = {
    NOT_REPRODUCED: ("†", "the paper's, not reproduced"),
    NOT_MEASURED: ("‡", "the paper's, on TPUs; not measured here (see --measure)"),
}
_OPENING = """\
    lambdanets tables                                   # all tables
    lambdanets tables 12                                # one table
    lambdanets tables --check                           # a summary; exit code 1 if a number differs
    lambdanets tables --format markdown --out tables.md # formats: text, markdown, csv, json
    lambdanets tables 12 --measure --out measured.json  # measure speed and peak memory; all tables take hours on a CPU
    lambdanets tables 12 --measured measured.json       # show these next to the paper's, with ratios to a baseline
    lambdanets tables --figures figures                 # accuracy over time (Figure 4), FLOPs over scope (Table 10)

The tables of the paper (Bello, ICLR 2021), with our numbers next to the paper's. Parameters and FLOPs are counted on
the models, memory is computed by the paper's formulas, and complexities are fitted. Accuracies are the paper's; they
were not reproduced. Numbers in brackets refer to the notes below a table. This command generates the page:

    lambdanets tables --measured experiments/results/xeon-2-cores/tables/*.json --figures docs/tables \\
        --format markdown --out docs/tables.md"""


def _heading(name: str) -> str:
    return f"Table {name}. {TITLES[name]}" if name.isdigit() else TITLES[name]


def _summary_lines(lines: Sequence[Line], measured: Measured) -> list[str]:
    return [f"{summary(lines)}.", *([f"Speeds measured on {measured.machine}."] if measured.machine else [])]


def _by_table(lines: Sequence[Line]) -> dict[str, list[Line]]:
    tables: dict[str, list[Line]] = {}
    for line in lines:
        tables.setdefault(line.paper.table, []).append(line)
    return tables


def _cells(lines: Sequence[Line]) -> tuple[list[str], list[list[str]], list[str]]:
    """Return header, rows and notes of one table: each column of the paper, then ours and the verdict, if any."""
    names = list(dict.fromkeys(line.paper.column for line in lines))
    columns = {name: [line for line in lines if line.paper.column == name] for name in names}
    compared = [name for name in names if any(line.ours is not None for line in columns[name])]
    units = {name: {line.paper.unit for line in columns[name]} - {""} for name in names}
    header = [""]
    for name in names:
        unit = f" ({min(units[name])})" if len(units[name]) == 1 else ""
        marks = [mark for mark in _MARKS if any(line.verdict == mark for line in columns[name])]
        header.append(" ".join([f"{name}{unit}", *(_MARKS[mark][0] for mark in marks)]))
        header += ["ours", "verdict"] if name in compared else []
    notes: list[str] = []
    rows = []
    for row in dict.fromkeys(line.paper.row for line in lines):
        cells = [row]
        for name in names:
            line = next((line for line in columns[name] if line.paper.row == row), None)
            unit = f" {line.paper.unit}" if line is not None and len(units[name]) > 1 else ""
            cells.append("" if line is None else f"{line.paper.text()}{unit}")
            if name in compared:
                cells += ["", ""] if line is None else _our_cells(line, unit, notes)
        rows.append(cells)
    notes += [
        f"{sign} {meaning}"
        for verdict, (sign, meaning) in _MARKS.items()
        if any(verdict == line.verdict for line in lines)
    ]
    return header, rows, notes


def _our_cells(line: Line, unit: str, notes: list[str]) -> list[str]:
    ours = "" if line.ours is None else line.ours if isinstance(line.ours, str) else f"{line.ours:#.5g}{unit}"
    verdict = line.verdict if line.verdict in (MATCH, DIFFERS, NOT_REPRODUCIBLE, MEASURED, OTHER_NETWORK) else ""
    if line.note and line.verdict == MEASURED:
        return [ours, line.note]
    if line.note:
        reason = f"{line.verdict}: {line.note}"
        known = next((i for i, note in enumerate(notes, 1) if note.partition(" ")[2] == reason), None)
        if known is None:
            known = len(notes) + 1
            notes.append(f"[{known}] {reason}")
        verdict = f"{'no' if line.verdict in (NOT_REPRODUCIBLE, DIFFERS) else line.verdict} [{known}]"
    return [ours, verdict]
