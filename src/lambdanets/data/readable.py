"""Checks that the images of a set can be read."""

from collections.abc import Callable, Sequence
from typing import Any

from lambdanets.data.images import UnreadableImage
from lambdanets.errors import InputError


def check_readable(load: Callable[[int], Any], count: int, split: str, max_unreadable: int) -> None:
    """Load the images 0 to count - 1 until one can be read, usually the first. Called before output is written.

    load: loads the image at an index, or raises UnreadableImage.
    split: name of the set in messages.

    Raises InputError if no image can be read, or more than max_unreadable cannot be read.
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
        raise InputError(f"none of the {count} {split} images can be read; the first: {unreadable[0]}")


def check_unreadable(messages: Sequence[str], limit: int) -> None:
    """Raise InputError, which includes the first three messages, if there are more than `limit`."""
    if len(messages) > limit:
        raise InputError(
            f"{len(messages)} images cannot be read, more than max_unreadable ({limit}): {'; '.join(messages[:3])}"
            f"{' ...' if len(messages) > 3 else ''}; repair them, or raise max_unreadable and run the command again"
        )
