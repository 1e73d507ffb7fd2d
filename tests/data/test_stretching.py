"""Stretched images do not depend on the number of bits, the gain and the offset of the camera."""

import numpy as np
import pytest
import tifffile
from PIL import Image

from lambdanets.data.images import UnreadableImage, read_image
from lambdanets.data.pixels import BRIGHT_BACKGROUND, BRIGHT_OBJECTS, DARK_BACKGROUND, to_8_bits


def nuclei(contrast=60, background=6, side=128):
    """Bright discs on a dark, noisy background, in float64."""
    generator = np.random.default_rng(0)
    pixels = background + generator.normal(0, 1, (side, side)).clip(-4, 4)
    rows, columns = np.mgrid[:side, :side]
    for row in range(16, side, 32):
        for column in range(16, side, 32):
            radius = generator.uniform(6, 10)
            pixels[np.hypot(rows - row, columns - column) < radius] += contrast * generator.uniform(0.8, 1.2)
    return pixels.round()


VARIANTS = {
    "plus5.png": lambda x: (x + 5).astype(np.uint8),
    "plus60.png": lambda x: (x + 60).astype(np.uint8),
    "doubled.png": lambda x: (x * 2).astype(np.uint8),
    "full_range.tif": lambda x: (x * 257).astype(np.uint16),
    "twelve_bits.tif": lambda x: (x * 12 + 100).astype(np.uint16),
    "offset.tif": lambda x: (x * 5 + 3_000_000_000).astype(np.uint32),
    "negative.tif": lambda x: (x / 3 - 1000).astype(np.float32),
    "color.tif": lambda x: np.stack([x, x, x], 2).astype(np.uint16) * 100,
}


def write(path, pixels):
    if path.suffix == ".png":
        Image.fromarray(pixels).save(path)
    else:
        tifffile.imwrite(path, pixels, photometric="rgb" if pixels.ndim == 3 else "minisblack")
    return path


@pytest.mark.parametrize("name", VARIANTS)
def test_gain_offset_and_bits_do_not_change_the_stretched_image(name, tmp_path):
    expected = read_image(write(tmp_path / "a.png", nuclei().astype(np.uint8)), stretch=True)
    image = read_image(write(tmp_path / name, VARIANTS[name](nuclei())), stretch=True).convert("L")
    assert np.abs(np.asarray(image, int) - np.asarray(expected, int)).max() <= 1
    assert np.median(expected) == DARK_BACKGROUND
    assert np.median(np.asarray(expected)[np.asarray(expected) > 40]) == pytest.approx(BRIGHT_OBJECTS, abs=1)


def test_stained_images_keep_black_and_their_colors():
    stained = (240 - nuclei())[..., None] * [0.9, 0.7, 0.8]
    image = to_8_bits((stained * 16).astype(np.uint16), stretch=True)
    background, expected = (np.median(x.mean(2)) for x in (image, stained))
    assert background == pytest.approx(BRIGHT_BACKGROUND, abs=1)
    np.testing.assert_allclose(image / background, stained / expected, atol=0.02)


@pytest.mark.parametrize("background", [6, 230])
def test_a_stretched_image_is_not_changed_again(background):
    contrast = 120 if background < 100 else -120
    once = to_8_bits((nuclei(contrast, background) * 40).astype(np.uint16), stretch=True)
    np.testing.assert_array_equal(to_8_bits(once, stretch=True), once)


@pytest.mark.parametrize("noise", [0, 3])
def test_a_few_objects_in_a_large_image_are_bright(noise):
    field = 20 + noise * np.random.default_rng(1).normal(size=(512, 512)).clip(-3, 3)
    for number in range(4):  # of 0.06% of the pixels each
        field[100 + 20 * number :, 200:213][:13] += 80
        stretched = to_8_bits((field * 100).astype(np.uint16), stretch=True)
        assert np.median(stretched) == pytest.approx(DARK_BACKGROUND, abs=1)
        assert np.median(stretched[100:113, 200:213]) == pytest.approx(BRIGHT_OBJECTS, abs=3)


def test_hot_pixels_and_overlays_do_not_hide_objects():
    """Of images without a dark background, or whose objects are not only a few."""
    contrast = 128 + np.random.default_rng(0).normal(0, 8, (512, 512)).clip(-28, 28)
    overlaid = contrast.copy()
    overlaid[500:502, 10:110] = 255  # a scale bar
    small = nuclei(side=64)
    hot = small.copy()
    hot[3, 3] = 4000
    for image, changed in ((contrast, overlaid), (small, hot)):
        expected, stretched = (to_8_bits(x.astype(np.uint16), stretch=True).astype(int) for x in (image, changed))
        assert (np.abs(stretched - expected) <= 2).mean() > 0.99


@pytest.mark.parametrize("value", [np.uint8(0), np.uint8(255), np.uint16(900), np.float32(-3)])
def test_a_constant_image_becomes_background(value):
    assert np.unique(to_8_bits(np.full((5, 7), value), stretch=True)).tolist() == [DARK_BACKGROUND]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(value, tmp_path):
    pixels = nuclei().astype(np.float32)
    pixels[3, 3] = value
    with pytest.raises(UnreadableImage, match="must be finite"):
        read_image(write(tmp_path / "a.tif", pixels), stretch=True)
