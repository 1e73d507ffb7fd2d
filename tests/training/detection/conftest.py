"""Fixture: a tiny detection recipe."""

import pytest

from training.detection.tiny_detection import tiny_recipe


@pytest.fixture
def tiny(tmp_path):
    """A recipe of a tiny detector, with its own images, which the test may change."""
    return tiny_recipe(tmp_path / "digits")
