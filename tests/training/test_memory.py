from dataclasses import replace

import pytest

from lambdanets.recipes.digits import recipe as DIGITS
from lambdanets.training.classification.model import ClassificationProbe
from lambdanets.training.memory import largest_micro_batch, training_memory


def test_activation_memory_of_resnet50_is_in_the_expected_range():
    # ResNet-50 saves 80 to 100 MiB of activations per image of 224 x 224 in float32 and has 25.6 million parameters
    recipe = replace(DIGITS, model="resnet50", image_size=224, channels=3)
    fixed, per_image = training_memory(ClassificationProbe(recipe, 1000))
    assert fixed == 25_557_032 * 4 * 3
    assert 80 * 2**20 < per_image < 100 * 2**20


def test_adamw_has_one_more_optimizer_state_than_sgd():
    adamw = training_memory(ClassificationProbe(replace(DIGITS, optimizer="adamw"), 10))[0]
    sgd = training_memory(ClassificationProbe(DIGITS, 10))[0]
    assert adamw == sgd * 4 // 3


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
    with_ema = training_memory(ClassificationProbe(replace(small, ema_decay=0.99), 10))[0]
    assert with_ema == training_memory(ClassificationProbe(small, 10))[0] * 4 // 3


def test_rejects_an_image_size_the_model_does_not_support():
    with pytest.raises(ValueError, match="vit_tiny_patch16_224 cannot take images of 8 x 8"):
        largest_micro_batch(ClassificationProbe(replace(DIGITS, model="vit_tiny_patch16_224", image_size=8), 10), 64)


def test_memory_is_cached_for_all_seeds_and_data_paths():
    seeds_of_built_models = []

    class CountingProbe(ClassificationProbe):
        def build(self):
            seeds_of_built_models.append(self.recipe.seed)
            return super().build()

    memory = training_memory(CountingProbe(DIGITS, 10))
    assert training_memory(CountingProbe(replace(DIGITS, seed=7, data="elsewhere"), 10)) == memory
    assert len(seeds_of_built_models) == 1
    assert training_memory(CountingProbe(replace(DIGITS, image_size=64), 10)) != memory
    assert training_memory(CountingProbe(DIGITS, 11)) != memory
    assert len(seeds_of_built_models) == 3
