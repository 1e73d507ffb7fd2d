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


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_color_images_are_rgb_and_one_channel_may_be_chosen(dtype, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (11, 17, 3), dtype=np.uint8)
    tifffile.imwrite(tmp_path / "a.tif", pixels.astype(dtype) * (257 if dtype == np.uint16 else 1), photometric="rgb")
    np.testing.assert_array_equal(np.asarray(read_microscopy_image(tmp_path / "a.tif")), pixels)
    np.testing.assert_array_equal(np.asarray(read_microscopy_image(tmp_path / "a.tif", 1)), pixels[..., 1])


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("axes", ["CYX", "ZYX", "YXS"])
def test_channels_and_planes_of_8_bits_need_a_choice(count, axes, tmp_path):
    planes = np.random.default_rng(0).integers(0, 256, (count, 11, 17), dtype=np.uint8)
    stored = np.moveaxis(planes, 0, 2) if axes == "YXS" else planes
    options = {"planarconfig": "contig"} if axes == "YXS" else {"metadata": {"axes": axes}}
    tifffile.imwrite(tmp_path / "a.tif", stored, photometric="minisblack", **options)
    with pytest.raises(UnreadableImage, match=f"{count} channels or planes; choose one"):
        read_microscopy_image(tmp_path / "a.tif")
    for channel, plane in enumerate(planes):
        np.testing.assert_array_equal(np.asarray(read_microscopy_image(tmp_path / "a.tif", channel, True)), plane)


def test_a_stack_of_planes_and_channels_is_numbered_in_order_of_the_file(tmp_path):
    planes = np.random.default_rng(0).integers(0, 65536, (2, 3, 11, 17)).astype(np.uint16)
    tifffile.imwrite(tmp_path / "a.tif", planes, imagej=True, metadata={"axes": "ZCYX"})
    image = read_microscopy_image(tmp_path / "a.tif", 4)
    np.testing.assert_array_equal(np.asarray(image), np.rint(planes[1, 1] / 257).astype(np.uint8))


def test_compressed_files_of_16_bits_are_read(channels, tmp_path):
    pytest.importorskip("imagecodecs", reason="imagecodecs is not installed")
    tifffile.imwrite(tmp_path / "a.tif", channels, compression="lzw", photometric="minisblack")
    image = read_microscopy_image(tmp_path / "a.tif", 1, stretch=True)
    assert np.abs(np.asarray(image) - stretched(channels[1])).max() <= 1


@pytest.mark.parametrize("stretch", [False, True])
def test_orientation_is_applied_to_all_depths(channels, stretch, tmp_path):
    exif = Image.Exif()
    exif[274] = 6
    tifffile.imwrite(tmp_path / "a.tif", channels[0], extratags=[(274, "H", 1, 6, False)])
    Image.fromarray(channels[0]).save(tmp_path / "a.png", exif=exif)
    images = [np.asarray(read_microscopy_image(tmp_path / name, None, stretch)) for name in ("a.tif", "a.png")]
    assert images[0].shape == (17, 11)
    np.testing.assert_array_equal(*images)


def test_large_offsets_keep_their_contrast(tmp_path):
    plane = (3_000_000_000 + np.arange(100).reshape(10, 10)).astype(np.uint32)
    tifffile.imwrite(tmp_path / "a.tif", plane)
    assert len(np.unique(np.asarray(read_microscopy_image(tmp_path / "a.tif", None, stretch=True)))) > 95
    with pytest.raises(UnreadableImage, match=r"must be in 0\.\.65535, got 3e\+09"):
        read_microscopy_image(tmp_path / "a.tif")


def test_files_with_another_suffix_than_their_format_are_read(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (11, 17), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.tif", "PNG")
    np.testing.assert_array_equal(np.asarray(read_microscopy_image(tmp_path / "a.tif")), pixels)


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
        (lambda path: path.write_text("no image"), None, "not an image of a known format"),
        (lambda path: path.write_bytes(b""), None, "the file is empty"),
        (write_damaged, 1, "a.tif"),
        (lambda path: None, None, "no such file"),
    ],
)
def test_unreadable_images_are_reported_in_one_line(write, channel, message, tmp_path):
    write(tmp_path / "a.tif")
    with pytest.raises(UnreadableImage, match=message) as raised:
        read_microscopy_image(tmp_path / "a.tif", channel, stretch=True)
    assert "\n" not in str(raised.value)
