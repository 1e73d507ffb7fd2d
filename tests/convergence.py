"""Trains longer until a condition is met, because the number of steps that it takes depends on the processor."""

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

Result = TypeVar("Result")


def train_until(condition: Callable[[Result], Any], train: Callable[[int], Result]) -> Result:
    """Train with 1, 2 and 4 times the usual number of steps, and return the first result that meets the condition.

    `train` trains from scratch; its argument is 1, 2 or 4. The test fails if no result meets the condition.
    """
    for factor in (1, 2, 4):
        result = train(factor)
        if condition(result):
            return result
    return pytest.fail(f"no result met the condition; training four times as long ended with {result}")
