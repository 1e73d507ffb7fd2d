"""A recipe for tests of training, and where it ends."""

import pytest

from lambdanets.training import run
from lambdanets.training.recipe import Recipe
from noise_images import write_two_classes


def quick_on(images):
    return Recipe(
        data=str(images),
        channels=3,
        image_size=8,
        epochs=3,
        batch_size=6,
        warmup_epochs=0.5,
        drop_path=0.2,
        dropout=0.1,
        flip=0.5,
        rand_augment="rand-m5-n1",
        checkpoint_every=2,
    )


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
