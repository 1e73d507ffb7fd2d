"""Whether enough images of a set can be read, found out before anything is made for them."""

from collections.abc import Callable, Sequence
from typing import Any

from lambdanets.data.images import UnreadableImage
from lambdanets.errors import InputError


def check_readable(load: Callable[[int], Any], count: int, part: str, max_unreadable: int) -> None:
    """Load the images of a part by number until one can be read, which usually is the first.

    Raises InputError where none of the `count` images can be read, and where more than max_unreadable cannot.
    """
    unreadable: list[str] = []
    for number in range(count):
        try:
            load(number)
        except UnreadableImage as error:
            unreadable.append(f"{error.path}: {error.reason}")
        else:
            return
        check_unreadable(unreadable, max_unreadable if number + 1 < count else count)
    if unreadable:
        raise InputError(f"none of the {count} {part} images can be read; the first: {unreadable[0]}")


def check_unreadable(sentences: Sequence[str], limit: int) -> None:
    """Raise InputError, with three of the sentences, where there are more than `limit` of them."""
    if len(sentences) > limit:
        raise InputError(
            f"{len(sentences)} images cannot be read, more than max_unreadable ({limit}): {'; '.join(sentences[:3])}"
            f"{' ...' if len(sentences) > 3 else ''}; mend them, or allow more and run the command again"
        )
