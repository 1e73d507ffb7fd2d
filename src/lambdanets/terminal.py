"""Prints text with control characters escaped, because names may contain terminal escape codes; tables as text."""

import csv
import io
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TextIO

# Unicode categories. Cc: control characters. Cf: format characters, such as text direction. Zl, Zp: line breaks.
# Cs: surrogates, which stand for bytes of file names that are not UTF-8.
_ESCAPED_CATEGORIES = {"Cc", "Cf", "Cs", "Zl", "Zp"}
# These are in Cf, but are not escaped, because emoji and several scripts need them.
_JOINERS = {"\u200c", "\u200d"}


def printable(text: object) -> str:
    """Replace control characters, line breaks and surrogates by Python escapes such as \\x1b, \\n and \\udcff.

    Names of files and classes are drawn and printed in this form: other libraries reject surrogates.
    """
    return "".join(
        char.encode("unicode_escape").decode()
        if unicodedata.category(char) in _ESCAPED_CATEGORIES and char not in _JOINERS
        else char
        for char in str(text)
    )


def echo(*lines: object, file: TextIO | None = None) -> None:
    """Print lines with control characters escaped, by default on standard output, without breaking a tqdm bar.

    The linter checks that the package prints only with this function.
    """
    stream = sys.stdout if file is None else file
    text = "".join(f"{printable(line)}\n" for line in lines)
    tqdm = sys.modules.get("tqdm")
    if tqdm is None:
        stream.write(text)
    else:
        with tqdm.tqdm.external_write_mode(file=stream):
            stream.write(text)
    stream.flush()


def plural(count: int, noun: str) -> str:
    """Format a number and a noun, such as "1 image" or "2,000 images"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Format rows as aligned columns: the first column left-aligned, the others right-aligned."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([f"  {first:<{widths[0]}}", *cells]).rstrip())
    return "\n".join(lines)


def csv_table(rows: Iterable[Iterable[object]]) -> str:
    """Format rows as CSV."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
