import io
import os
import pickle
import socket
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image, ImageFile

from lambdanets.data.image_search import find_images
from lambdanets.data.images import UnreadableImage, read_file, read_image
from lambdanets.errors import InputError


def save(path: Path, image: Image.Image, **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)
    return path


def make_gradient(mode: str = "RGB") -> Image.Image:
    values = np.arange(64, dtype=np.uint8).reshape(8, 8) * 4
    return Image.fromarray(np.stack([values, values.T, 255 - values], -1)).convert(mode)


def pixel(image: Image.Image, x: int = 0, y: int = 0) -> object:
    return image.getpixel((x, y))


@pytest.mark.parametrize("transparency", [1, b"\xff\x00"])
def test_a_transparent_palette_entry_becomes_white(tmp_path: Path, transparency: int | bytes) -> None:
    source = Image.new("P", (4, 4), 1)
    source.putpalette([10, 20, 30, 200, 100, 50])
    source.putpixel((0, 0), 0)
    image = read_image(save(tmp_path / "a.png", source, transparency=transparency))
    assert (pixel(image, 0), pixel(image, 1)) == ((10, 20, 30), (255, 255, 255))


def test_a_palette_with_alpha_is_composited_on_white(tmp_path: Path) -> None:
    source = make_gradient("PA")
    source.putalpha(Image.linear_gradient("L").resize((8, 8), Image.Resampling.NEAREST))
    image = read_image(save(tmp_path / "a.tiff", source))
    assert image.mode == "RGB"
    assert min(pixel(image)) > 230


@pytest.mark.parametrize("mode", ["1", "L", "RGB"])
def test_a_transparent_color_key_becomes_white(tmp_path: Path, mode: str) -> None:
    key: object = (0, 0, 0) if mode == "RGB" else 0
    source = Image.new(mode, (4, 4), 0)
    source.putpixel((1, 0), (9, 9, 9) if mode == "RGB" else 9)
    image = read_image(save(tmp_path / "a.png", source, transparency=key)).convert("L")
    assert pixel(image) == 255
    assert pixel(image, 1) == (255 if mode == "1" else 9)


def test_a_16_bit_png_is_scaled_and_not_clipped(tmp_path: Path) -> None:
    values = np.array([[0, 257, 32896, 65535]], dtype=np.uint16)
    image = read_image(save(tmp_path / "a.png", Image.fromarray(values)))
    assert image.mode == "L"
    assert np.asarray(image).tolist() == [[0, 1, 128, 255]]


def test_floats_are_scaled_by_the_same_factor_in_every_image(tmp_path: Path) -> None:
    for values in ([0.0, 0.5, 1.0], [0.0, 0.25, 0.5]):
        image = read_image(save(tmp_path / "a.tiff", Image.fromarray(np.array([values], dtype=np.float32))))
        assert image.mode == "L"
        assert np.asarray(image).tolist() == [np.rint(np.multiply(values, 255)).tolist()]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (np.float32([0, 128, 255]), r"its floats must be in 0\.\.1, got 0 to 255; convert the images of the set"),
        (np.float32([-3, 0, 3]), r"its floats must be in 0\.\.1, got -3 to 3;"),
        (np.float32([0, np.nan, 1]), r"its floats must be in 0\.\.1, got nan to nan;"),
        (np.float32([0, np.inf, 1]), r"its floats must be in 0\.\.1, got 0 to inf;"),
        (np.int32([-1000, 0, 1000]), r"its integers must be in 0\.\.65535, got -1000 to 1000;"),
        (np.int32([0, 1, 65536]), r"its integers must be in 0\.\.65535, got 0 to 65536;"),
    ],
)
def test_images_with_values_out_of_range_are_unreadable(tmp_path: Path, values: np.ndarray, reason: str) -> None:
    path = save(tmp_path / "a.tiff", Image.fromarray(values[None]))
    with pytest.raises(UnreadableImage, match=reason):
        read_image(path)


def test_an_adobe_cmyk_jpeg_is_not_read_inverted(tmp_path: Path) -> None:
    path = save(tmp_path / "a.jpg", Image.new("CMYK", (8, 8), (0, 0, 0, 255)))
    assert b"Adobe" in path.read_bytes()[:64]  # Adobe's marker means that the inks are inverted
    np.testing.assert_allclose(pixel(read_image(path)), (0, 0, 0), atol=8)


@pytest.mark.parametrize("mode", ["YCbCr", "LAB", "RGBX"])
def test_other_color_spaces_become_rgb(tmp_path: Path, mode: str) -> None:
    # compressed, because Pillow 12.3 cannot read its own uncompressed YCbCr
    assert read_image(save(tmp_path / "a.tiff", Image.new(mode, (4, 4)), compression="tiff_lzw")).mode == "RGB"


def test_a_file_in_memory_may_be_closed_after_reading() -> None:
    buffer = io.BytesIO()
    make_gradient().save(buffer, "PNG")
    image = read_image(buffer)
    buffer.close()
    assert image.tobytes() == make_gradient().tobytes()


@pytest.mark.parametrize("suffix", ["gif", "png", "webp"])
def test_the_first_frame_of_an_animation_is_read(tmp_path: Path, suffix: str) -> None:
    frames = [Image.new("L", (4, 4), 10), Image.new("L", (4, 4), 200)]
    image = read_image(save(tmp_path / f"a.{suffix}", frames[0], save_all=True, append_images=frames[1:]))
    assert abs(pixel(image.convert("L")) - 10) <= 1


def test_a_truncated_jpeg_is_unreadable(tmp_path: Path) -> None:
    path = save(tmp_path / "a.jpg", make_gradient().resize((64, 64)))
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(UnreadableImage, match="truncated") as caught:
        read_image(path)
    assert caught.value.path == str(path)
    assert "truncated" in caught.value.reason
    assert not ImageFile.LOAD_TRUNCATED_IMAGES


def test_a_truncated_png_is_unreadable(tmp_path: Path) -> None:
    path = save(tmp_path / "a.png", Image.effect_noise((64, 64), 50))
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(UnreadableImage):
        read_image(path)


def test_a_text_file_named_png_is_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_text("not pixels")
    with pytest.raises(UnreadableImage, match=r"a\.png: it is not an image of a known format$"):
        read_image(path)


def test_an_empty_file_is_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.touch()
    with pytest.raises(UnreadableImage, match="the file is empty"):
        read_image(path)


def test_a_missing_file_is_unreadable(tmp_path: Path) -> None:
    with pytest.raises(UnreadableImage, match="there is no such file"):
        read_image(tmp_path / "a.png")


def test_a_folder_is_not_readable_as_an_image(tmp_path: Path) -> None:
    with pytest.raises(UnreadableImage, match="it is a folder, not a file"):
        read_image(tmp_path)


@pytest.mark.parametrize("file_type", ["a named pipe", "a socket", "a device"])
def test_special_files_are_unreadable_and_not_opened(
    tmp_path: Path, file_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "folder/p.png"
    path.parent.mkdir()
    monkeypatch.chdir(path.parent)  # a socket's path must be short
    if file_type == "a named pipe":
        os.mkfifo(path)
    elif file_type == "a socket":
        socket.socket(socket.AF_UNIX).bind(path.name)
    else:
        path.symlink_to("/dev/zero")
    for file_or_folder in (path, path.parent):
        assert find_images([str(file_or_folder)]).paths == [path]
    with pytest.raises(UnreadableImage, match=rf"p\.png: it is {file_type}, not a file$"):
        read_image(path)
    with pytest.raises(UnreadableImage, match=rf"it is {file_type}, not a file$"):
        read_file(path)


def test_a_link_to_itself_is_unreadable(tmp_path: Path) -> None:
    (tmp_path / "p.png").symlink_to(tmp_path / "p.png")
    (path,) = find_images([str(tmp_path)]).paths
    with pytest.raises(UnreadableImage, match="symbolic links"):
        read_image(path)


def test_an_image_without_pixels_is_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "a.ppm"
    path.write_bytes(b"P6\n0 4\n255\n")
    with pytest.raises(UnreadableImage):
        read_image(path)


def test_a_decompression_bomb_is_unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "a.png", make_gradient())
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 16)
    with pytest.raises(UnreadableImage, match="bomb"):
        read_image(path)


def test_a_huge_image_below_the_limit_is_read_without_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path / "a.png", make_gradient())
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 48)  # Pillow warns from 48 pixels, and raises from 96
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_image(path).size == (8, 8)


def test_an_image_with_damaged_exif_is_read_without_a_warning(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    image = make_gradient()
    image.save(tmp_path / "a.jpg", exif=exif.tobytes()[:-9])
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert read_image(tmp_path / "a.jpg").size == image.size
    assert not warned


@pytest.mark.parametrize("size", [(1, 1), (1, 300), (300, 1)])
def test_an_image_that_is_one_pixel_wide_or_high_is_read(tmp_path: Path, size: tuple[int, int]) -> None:
    assert read_image(save(tmp_path / "a.png", Image.new("RGB", size, (1, 2, 3)))).size == size


def test_unreadable_image_is_an_input_error_and_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(UnreadableImage("a.png", "the file is empty")))
    assert isinstance(error, InputError)
    assert (error.path, error.reason) == ("a.png", "the file is empty")
