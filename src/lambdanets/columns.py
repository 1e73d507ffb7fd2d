"""Text in columns, for a terminal."""

from collections.abc import Sequence

from lambdanets.terminal import printable


def columns(lines: Sequence[Sequence[str]]) -> str:
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
