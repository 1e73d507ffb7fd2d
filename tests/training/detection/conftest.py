"""Runs and data for tests of detection."""

import pytest

from training.detection.tiny_detection import tiny_recipe


@pytest.fixture
def tiny(tmp_path):
    """A recipe on images of the test's own, which it may change."""
    return tiny_recipe(tmp_path / "digits")
