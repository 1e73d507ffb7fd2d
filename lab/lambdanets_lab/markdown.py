"""Tables in Markdown."""

import statistics
from collections.abc import Sequence


def markdown_table(header: Sequence[str], *rows: Sequence[str]) -> str:
    """Format a table in Markdown, without a line break at the end."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (header, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(header), *lines[1:]])


def format_mean(values: Sequence[float], digits: int = 1) -> str:
    """Format mean ± std; "-" without values, and no std for one."""
    if not values:
        return "-"
    std = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{std}"
