"""Checks, before any output is written, that images of a set can be read."""

from collections.abc import Callable, Sequence
from typing import Any

from lambdanets.data.images import UnreadableImage
from lambdanets.errors import InputError


def check_readable(load: Callable[[int], Any], count: int, part: str, max_unreadable: int) -> None:
    """Load images by index until one can be read, usually the first. part: the set's name in messages.

    Raises InputError where none of the `count` images can be read, or more than max_unreadable cannot.
    """
    unreadable: list[str] = []
    for index in range(count):
        try:
            load(index)
        except UnreadableImage as error:
            unreadable.append(f"{error.path}: {error.reason}")
        else:
            return
        check_unreadable(unreadable, max_unreadable if index + 1 < count else count)
    if unreadable:
        raise InputError(f"none of the {count} {part} images can be read; the first: {unreadable[0]}")


def check_unreadable(messages: Sequence[str], limit: int) -> None:
    """Raise InputError with the first three messages where there are more than `limit`."""
    if len(messages) > limit:
        raise InputError(
            f"{len(messages)} images cannot be read, more than max_unreadable ({limit}): {'; '.join(messages[:3])}"
            f"{' ...' if len(messages) > 3 else ''}; repair them, or raise max_unreadable and run the command again"
        )
