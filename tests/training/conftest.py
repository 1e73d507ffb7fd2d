"""Fixtures: a recipe that trains in about half a second, and no drawing."""

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from training.runs import quick_recipe


@pytest.fixture(autouse=True)
def skip_drawing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Save blank figures, because drawing takes a third of the time of a small run; not in tests marked `figures`."""

    def save_blank(*arguments: Any) -> None:
        path: Path = arguments[-1]
        Image.new("L", (1, 1)).save(path)

    if not request.node.get_closest_marker("figures"):
        monkeypatch.setattr("lambdanets.training.report.draw_curves", save_blank)
        monkeypatch.setattr("lambdanets.tasks.classification.task.draw_predictions", save_blank)


@pytest.fixture
def quick(two_classes):
    """A recipe that trains in about half a second: 3 epochs of 3 steps, with all random augmentations."""
    return quick_recipe(two_classes)
