from dataclasses import replace

import pytest

from lambdanets.recipes.digits import recipe as DIGITS
from lambdanets.training.classification.model import ClassificationProbe
from lambdanets.training.memory import largest_micro_batch, training_memory


def test_activation_memory_of_resnet50_is_as_known():
    # ResNet-50 at 224 pixels in float32 saves 80 to 100 MiB per image for backward, and has 25.6 million parameters
    recipe = replace(DIGITS, model="resnet50", image_size=224, channels=3)
    fixed, per_image = training_memory(ClassificationProbe(recipe, 1000))
    assert fixed == 25_557_032 * 4 * 3
    assert 80 * 2**20 < per_image < 100 * 2**20


def test_adam_has_one_more_optimizer_state():
    small = DIGITS
    assert (
        training_memory(ClassificationProbe(replace(small, optimizer="adamw"), 10))[0]
        == training_memory(ClassificationProbe(small, 10))[0] * 4 // 3
    )


def test_micro_batch_is_halved_until_it_fits():
    small = replace(DIGITS, model="resnet10t", channels=3, image_size=64)
    fixed, per_image = training_memory(ClassificationProbe(small, 10))
    assert largest_micro_batch(ClassificationProbe(small, 10), 64, fixed + 64 * per_image) == 64
    assert largest_micro_batch(ClassificationProbe(small, 10), 64, fixed + 63 * per_image) == 32
    assert largest_micro_batch(ClassificationProbe(small, 10), 65, fixed + 20 * per_image) == 17
    assert largest_micro_batch(ClassificationProbe(small, 10), 64, fixed + 2 * per_image) == 2


def test_rejects_a_model_too_large_for_two_images():
    with pytest.raises(ValueError, match=r"needs about .* GiB, but only 0\.5 GiB are free; choose a smaller model"):
        largest_micro_batch(
            ClassificationProbe(replace(DIGITS, model="resnet50", channels=3, image_size=512), 10), 64, 2**29
        )


def test_ema_memory_is_counted():
    small = replace(DIGITS, model="resnet10t", channels=3, image_size=64)
    averaged = training_memory(ClassificationProbe(replace(small, ema_decay=0.99), 10))[0]
    assert averaged == training_memory(ClassificationProbe(small, 10))[0] * 4 // 3


def test_rejects_an_image_size_the_model_does_not_support():
    with pytest.raises(ValueError, match="vit_tiny_patch16_224 cannot take images of 8 x 8"):
        largest_micro_batch(ClassificationProbe(replace(DIGITS, model="vit_tiny_patch16_224", image_size=8), 10), 64)


def test_memory_is_cached_over_seeds_and_data_paths():
    built, small = [], DIGITS

    class Counted(ClassificationProbe):
        def build(self):
            built.append(self.recipe.seed)
            return super().build()

    first = training_memory(Counted(small, 10))
    assert training_memory(Counted(replace(small, seed=7, data="elsewhere"), 10)) == first
    assert len(built) == 1
    assert training_memory(Counted(replace(small, image_size=64), 10)) != first
    assert training_memory(Counted(small, 11)) != first
    assert len(built) == 3
