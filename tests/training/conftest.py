"""Fixtures: a recipe that trains in about half a second."""

import pytest

from training.runs import quick_recipe


@pytest.fixture
def quick(two_classes):
    """A recipe that trains in about half a second: 3 epochs of 3 steps, with all random augmentations."""
    return quick_recipe(two_classes)
