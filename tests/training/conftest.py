"""A recipe for tests of training."""

import pytest

from lambdanets.training.recipe import Recipe


@pytest.fixture
def quick(two_classes):
    """A recipe that trains in about a second: 9 steps, 3 an epoch, with everything random in it."""
    return Recipe(
        data=str(two_classes),
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
