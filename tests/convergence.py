"""Trainings that must reach something: how soon they do depends on the processor."""

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

Result = TypeVar("Result")


def train_until(reached: Callable[[Result], Any], train: Callable[[int], Result]) -> Result:
    """The result of train(1), else of train(2), else of train(4), for so many times as long, once it is reached.

    Each trains from the beginning. Fails with the last result where none reaches it.
    """
    for times in (1, 2, 4):
        result = train(times)
        if reached(result):
            return result
    return pytest.fail(f"not reached in four times the usual training, which ended with {result}")
