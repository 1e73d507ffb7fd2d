from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from lambdanets.data.transforms import center_square
from lambdanets.recipes.digits import recipe as DIGITS
from lambdanets.tasks.classification import make_transform, normalize


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("channels", [1, 3])
def test_transforms_return_squares_of_the_image_size(channels, training):
    recipe = replace(DIGITS, channels=channels, image_size=12)
    image = Image.new("RGB" if channels == 1 else "L", (31, 17), (128,) * (4 - channels))  # of another mode
    evaluate = recipe.preprocessing.transform()
    tensor = normalize(make_transform(recipe)(image), recipe.mean, recipe.std) if training else evaluate(image)
    assert tensor.shape == (channels, 12, 12)
    torch.testing.assert_close(tensor, torch.full_like(tensor, (128 / 255 - 0.5) / 0.25))


def test_evaluation_crops_the_center():
    pixels = np.zeros((10, 30), np.uint8)
    pixels[:, 10:20] = 255
    tensor = replace(DIGITS, image_size=10).preprocessing.transform()(Image.fromarray(pixels))
    assert tensor.min() == tensor.max() == 2.0


@pytest.mark.parametrize("size", [(1, 60_000), (60_000, 1)])
def test_long_images_are_cropped_before_they_are_resized(size):
    assert center_square(Image.new("L", size)).size == (1, 1)
    assert replace(DIGITS, image_size=224).preprocessing.transform()(Image.new("L", size)).shape == (1, 224, 224)


def test_padded_crops_are_shifted_copies_of_the_image():
    recipe = replace(DIGITS, image_size=12, crop_padding=3, flip=0.0, rand_augment=None)
    pixels = np.arange(1, 145, dtype=np.uint8).reshape(12, 12)
    padded = np.pad(pixels, 3)
    windows = {(y, x): padded[y : y + 12, x : x + 12] for y in range(7) for x in range(7)}
    transform = make_transform(recipe)
    seen = set()
    for _ in range(100):
        crop = transform(Image.fromarray(pixels))[0].numpy()
        seen |= {shift for shift, window in windows.items() if np.array_equal(window, crop)}
    assert len(seen) > 20  # of 49 shifts
