"""Training until a metric is reached: the number of steps needed depends on the processor."""

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

Result = TypeVar("Result")


def train_until(reached: Callable[[Result], Any], train: Callable[[int], Result]) -> Result:
    """Train for 1, 2 and 4 times the usual length, each from scratch, and return the first result that is reached.

    Fails with the last result if none is.
    """
    for times in (1, 2, 4):
        result = train(times)
        if reached(result):
            return result
    return pytest.fail(f"not reached in four times the usual training, which ended with {result}")
