"""Tables for a terminal and in Markdown, from rows of cells."""

from collections.abc import Sequence

from lambdanets.terminal import printable


def text_table(lines: Sequence[Sequence[str]]) -> str:
    """Format lines as aligned columns, the first one left-aligned. Lines with fewer cells do not affect the widths."""
    lines = [[printable(cell) for cell in line] for line in lines]
    count = max(len(line) for line in lines)
    full = [line for line in lines if len(line) == count]
    widths = [max(len(line[i]) for line in full) for i in range(count)]
    widths[0] = max(len(line[0]) for line in lines)
    texts = []
    for line in lines:
        rest = zip(line[1:], widths[1:], strict=False)
        padded = [f"{cell:>{width}}" for cell, width in rest] if len(line) == count else list(line[1:])
        texts.append("  ".join([f"  {line[0]:<{widths[0]}}", *padded]).rstrip())
    return "\n".join(texts)


def markdown_table(header: Sequence[str], *rows: Sequence[str]) -> str:
    """A table in Markdown, without a line break at its end."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (header, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(header), *lines[1:]])
