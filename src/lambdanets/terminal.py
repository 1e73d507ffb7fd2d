"""Printing with control characters escaped, because file and class names may contain terminal escape codes."""

import sys
import unicodedata
from typing import TextIO

# Cc: control characters. Cf: invisible ones, such as changes of text direction. Zl, Zp: line breaks.
_ESCAPED_CATEGORIES = {"Cc", "Cf", "Zl", "Zp"}
# In Cf too, but harmless, and needed by emoji and several scripts.
_JOINERS = {"\u200c", "\u200d"}


def printable(text: object) -> str:
    """The text with control characters and line breaks as Python escapes: \\x1b, \\n."""
    string = str(text)
    if string.isprintable():
        return string
    return "".join(
        char.encode("unicode_escape").decode()
        if unicodedata.category(char) in _ESCAPED_CATEGORIES and char not in _JOINERS
        else char
        for char in string
    )


def echo(*lines: object, file: TextIO | None = None) -> None:
    """Print and flush escaped lines, by default on standard output, without breaking a tqdm bar.

    The package prints only with this function; the linter checks it.
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
