"""The error that is the caller's, told in a sentence, once."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Something a person gave cannot be used: the message names it, what was expected and what came.

    The command line prints the message and ends with exit code 2; a program catches it as a ValueError.
    """


class AnotherRefused(Exception):  # noqa: N818 - it is no error of this process
    """Of several processes the first has refused what was asked, and said why; this one ends in silence."""


def nearest(name: str, known: Iterable[str], count: int = 1) -> str:
    """'; the nearest is ...' for a mistyped name, to end a sentence with, or nothing if no known name is close."""
    close = difflib.get_close_matches(name, list(known), n=count, cutoff=0.5)
    if not close:
        return ""
    return f"; the nearest {'is' if len(close) == 1 else 'are'} {', '.join(close)}"
