"""A recipe for tests of training, and where it ends."""

import pytest

from lambdanets.training import run
from noise_images import write_two_classes
from training.runs import quick_on


@pytest.fixture
def quick(two_classes):
    """A recipe that trains in about a second: 9 steps, 3 an epoch, with everything random in it."""
    return quick_on(two_classes)


@pytest.fixture(scope="session")
def quick_end(tmp_path_factory):
    """The folder of a run of `quick` that nothing happened to. Not to be changed."""
    folder = tmp_path_factory.mktemp("quick")
    run.start(quick_on(write_two_classes(folder / "images")), folder / "run")
    return folder / "run"
