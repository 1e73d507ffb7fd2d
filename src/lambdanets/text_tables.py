"""Formats tables as plain text and CSV."""

import csv
import io
from collections.abc import Iterable, Sequence

from lambdanets.terminal import printable


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Format rows as aligned columns: the first column left-aligned, the others right-aligned.

    Rows with fewer cells than the longest are not aligned, except for their first cell.
    """
    rows = [[printable(cell) for cell in row] for row in rows]
    columns = max(len(row) for row in rows)
    full_rows = [row for row in rows if len(row) == columns]
    widths = [max(len(row[i]) for row in full_rows) for i in range(columns)]
    widths[0] = max(len(row[0]) for row in rows)
    lines = []
    for row in rows:
        cells_and_widths = zip(row[1:], widths[1:], strict=False)
        is_full = len(row) == columns
        padded = [f"{cell:>{width}}" for cell, width in cells_and_widths] if is_full else list(row[1:])
        lines.append("  ".join([f"  {row[0]:<{widths[0]}}", *padded]).rstrip())
    return "\n".join(lines)


def csv_table(rows: Iterable[Iterable[object]]) -> str:
    """Format rows as CSV."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
