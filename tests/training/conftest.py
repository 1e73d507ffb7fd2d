"""A recipe for tests of training."""

import pytest

from training.runs import quick_recipe


@pytest.fixture
def quick(two_classes):
    """A recipe that trains in about a second: 9 steps, 3 an epoch, with everything random in it."""
    return quick_recipe(two_classes)
