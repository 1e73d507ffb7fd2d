"""Lines on the terminal. Names of files and classes may hold escape codes: a control character is shown, not obeyed."""

import sys
import unicodedata
from typing import TextIO

# Cc: control characters. Cf: invisible ones, such as those that reverse the text's direction. Zl, Zp: line breaks.
_SHOWN_ESCAPED = {"Cc", "Cf", "Zl", "Zp"}
# Cf as well, but emoji and several scripts are written with them, and they move nothing.
_JOINERS = {"\u200c", "\u200d"}


def printable(text: object) -> str:
    """The text with control characters and line breaks as Python writes them: \\x1b, \\n."""
    string = str(text)
    if string.isprintable():
        return string
    return "".join(
        char.encode("unicode_escape").decode()
        if unicodedata.category(char) in _SHOWN_ESCAPED and char not in _JOINERS
        else char
        for char in string
    )


def say(*lines: object, file: TextIO | None = None) -> None:
    """Print lines, each on a line of its own, whatever it holds; flushed. By default on standard output.

    All output of the package's own goes through here, which the linter checks. A progress bar is not torn by it.
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
