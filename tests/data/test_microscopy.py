"""Images of microscopes: several channels, planes, and more than 8 bits."""

import numpy as np
import pytest
from PIL import Image

from lambdanets.data.images import UnreadableImage, read_image
from lambdanets.data.microscopy import read_microscopy_image

tifffile = pytest.importorskip("tifffile", reason="tifffile is not installed")


@pytest.fixture
def channels():
    """Two channels (2, H, W) of 12 bits."""
    return np.random.default_rng(0).integers(100, 4096, (2, 11, 17)).astype(np.uint16)


def stretched(plane):
    low, high = np.percentile(plane, (0.1, 99.9))
    return np.rint((255 * (plane.astype(float) - low) / (high - low)).clip(0, 255))


def test_channels_of_16_bits_are_stretched_between_percentiles(channels, tmp_path):
    tifffile.imwrite(tmp_path / "a.tif", channels, metadata={"axes": "CYX"})
    for channel, plane in enumerate(channels):
        image = read_microscopy_image(tmp_path / "a.tif", channel, stretch=True)
        assert image.mode == "L"
        assert np.abs(np.asarray(image) - stretched(plane)).max() <= 1


def test_without_stretch_16_bits_are_scaled_as_by_read_image(channels, tmp_path):
    tifffile.imwrite(tmp_path / "a.tif", channels[0])
    Image.fromarray(channels[0]).save(tmp_path / "a.png")
    expected = np.asarray(read_image(tmp_path / "a.png"))
    for name in ("a.tif", "a.png"):
        np.testing.assert_array_equal(np.asarray(read_microscopy_image(tmp_path / name)), expected)


def test_png_files_of_16_bits_are_stretched_too(channels, tmp_path):
    Image.fromarray(channels[0]).save(tmp_path / "a.png")
    image = read_microscopy_image(tmp_path / "a.png", stretch=True)
    assert np.abs(np.asarray(image) - stretched(channels[0])).max() <= 1


@pytest.mark.parametrize("photometric", ["rgb", "minisblack"])
def test_three_channels_of_8_bits_are_rgb_and_one_may_be_chosen(photometric, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (11, 17, 3), dtype=np.uint8)
    stored = pixels if photometric == "rgb" else np.moveaxis(pixels, 2, 0)
    tifffile.imwrite(tmp_path / "a.tif", stored, photometric=photometric)
    np.testing.assert_array_equal(np.asarray(read_microscopy_image(tmp_path / "a.tif")), pixels)
    np.testing.assert_array_equal(np.asarray(read_microscopy_image(tmp_path / "a.tif", 1)), pixels[..., 1])


def test_8_bit_images_are_read_as_by_read_image(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (11, 17), dtype=np.uint8)
    for name in ("a.tif", "a.png"):
        Image.fromarray(pixels).save(tmp_path / name)
        for stretch in (False, True):
            np.testing.assert_array_equal(np.asarray(read_microscopy_image(tmp_path / name, None, stretch)), pixels)


def write_damaged(path):
    tifffile.imwrite(path, np.zeros((2, 40, 40), np.uint16))
    path.write_bytes(path.read_bytes()[:2000])


@pytest.mark.parametrize(
    ("write", "channel", "message"),
    [
        (lambda path: tifffile.imwrite(path, np.zeros((2, 9, 9), np.uint16)), None, "2 channels or planes; choose one"),
        (lambda path: tifffile.imwrite(path, np.zeros((2, 9, 9), np.uint16)), 2, "channel must be below 2.*got 2"),
        (lambda path: tifffile.imwrite(path, np.full((9, 9), np.nan, np.float32)), None, "must be finite"),
        (
            lambda path: tifffile.imwrite(path, np.zeros((9, 9), np.complex64)),
            None,
            "floats, got complex64",
        ),
        (lambda path: path.write_text("no image"), None, "not a TIFF file"),
        (lambda path: path.write_bytes(b""), None, "a.tif"),
        (write_damaged, 1, "a.tif"),
        (lambda path: None, None, "no such file"),
    ],
)
def test_unreadable_images_are_reported_in_one_line(write, channel, message, tmp_path):
    write(tmp_path / "a.tif")
    with pytest.raises(UnreadableImage, match=message) as raised:
        read_microscopy_image(tmp_path / "a.tif", channel, stretch=True)
    assert "\n" not in str(raised.value)
