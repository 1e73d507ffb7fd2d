from dataclasses import replace

import pytest

from lambdanets.training.memory import check_memory, training_memory
from lambdanets.training.recipe import Recipe


def test_activations_are_those_that_autograd_keeps():
    # a plain ResNet-50 at 224 pixels in float32 keeps 80 to 100 MiB an image, and has 25.6 million parameters
    recipe = Recipe(model="resnet50", image_size=224, channels=3)
    fixed, per_image = training_memory(recipe, 1000)
    assert fixed == 25_557_032 * 4 * 3
    assert 80 * 2**20 < per_image < 100 * 2**20


def test_adam_keeps_one_state_more():
    small = Recipe()
    assert training_memory(replace(small, optimizer="adamw"), 10)[0] == training_memory(small, 10)[0] * 4 // 3


def test_what_does_not_fit_is_refused_with_what_would():
    with pytest.raises(
        ValueError,
        match=r"batch_size 4096 at image_size 16 needs about .* GiB, and 0\.5 GiB are free; batch_size \d+ would fit",
    ):
        check_memory(Recipe(batch_size=4096), 10, 10**6, free_bytes=2**29)


def test_a_model_too_large_for_any_batch_is_refused():
    with pytest.raises(ValueError, match="choose a smaller model or image_size"):
        check_memory(Recipe(model="lambda_resnet420", channels=3, image_size=64), 10, 10**6, free_bytes=2**29)


def test_what_fits_passes():
    check_memory(Recipe(), 10, 10**6, free_bytes=2**32)


def test_a_batch_larger_than_the_data_counts_as_the_data():
    check_memory(Recipe(batch_size=10**6), 10, 100, free_bytes=2**30)


def test_a_size_that_the_model_cannot_take_is_named():
    with pytest.raises(ValueError, match="vit_tiny_patch16_224 cannot take images of 8 x 8"):
        check_memory(Recipe(model="vit_tiny_patch16_224", image_size=8), 10, 100)
