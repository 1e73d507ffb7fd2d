"""A tiny detection recipe."""

import pytest

from training.detection.tiny_detection import tiny_recipe


@pytest.fixture
def tiny(tmp_path):
    """A recipe with images that the test may change."""
    return tiny_recipe(tmp_path / "digits")
