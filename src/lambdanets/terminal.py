"""Prints text with control characters escaped, because file names and class names may contain terminal escape codes."""

import sys
import unicodedata
from typing import TextIO

# Unicode categories. Cc: control characters. Cf: format characters, such as text direction. Zl, Zp: line breaks.
_ESCAPED_CATEGORIES = {"Cc", "Cf", "Zl", "Zp"}
# These are in Cf, but are not escaped, because emoji and several scripts need them.
_JOINERS = {"\u200c", "\u200d"}


def printable(text: object) -> str:
    """Replace control characters and line breaks by Python escapes such as \\x1b and \\n."""
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
