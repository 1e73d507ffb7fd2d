"""A quick recipe."""

import pytest

from training.runs import quick_recipe


@pytest.fixture
def quick(two_classes):
    """A recipe that trains in about a second: 9 steps, 3 per epoch, with every random augmentation."""
    return quick_recipe(two_classes)
