"""Image files of all kinds, damaged ones, and files that are no images."""

import io
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFile, PngImagePlugin

from lambdanets.data.image_search import find_images
from lambdanets.data.images import UnreadableImage, check_unreadable, read_image
from lambdanets.data.labeled_images import ImageFiles
from lambdanets.errors import InputError


def save(path: Path, image: Image.Image, **options: object) -> Path:
    image.save(path, **options)
    return path


def make_gradient(mode: str = "RGB") -> Image.Image:
    values = np.arange(64, dtype=np.uint8).reshape(8, 8) * 4
    return Image.fromarray(np.stack([values, values.T, 255 - values], -1)).convert(mode)


@pytest.mark.parametrize("suffix", ["gif", "png", "webp"])
def test_the_first_frame_of_an_animation_is_read(tmp_path: Path, suffix: str) -> None:
    frames = [Image.new("L", (4, 4), 10), Image.new("L", (4, 4), 200)]
    image = read_image(save(tmp_path / f"a.{suffix}", frames[0], save_all=True, append_images=frames[1:]))
    assert abs(image.convert("L").getpixel((0, 0)) - 10) <= 1


@pytest.mark.parametrize("name", ["icc_profile", "pnginfo"])
def test_a_png_with_a_large_profile_or_text_is_read(tmp_path: Path, name: str) -> None:
    text = PngImagePlugin.PngInfo()
    text.add_text("workflow", " " * 3_000_000, zip=True)
    metadata = {"icc_profile": bytes(3_000_000), "pnginfo": text}[name]
    image = make_gradient()
    read = read_image(save(tmp_path / "a.png", image, **{name: metadata}))
    assert read.tobytes() == image.tobytes()


EXIF_ROTATED = b"II*\0\x08\0\0\0\x02\0" + struct.pack("<HHII", 0x0112, 3, 1, 6)


@pytest.mark.parametrize(
    ("exif", "size"),
    [(b"no header", (8, 4)), (EXIF_ROTATED + struct.pack("<HHI4sI", 0x011A, 7, 4, b"no x", 0), (4, 8))],  # resolution
)
def test_damaged_exif_does_not_make_an_image_unreadable(tmp_path: Path, exif: bytes, size: tuple[int, int]) -> None:
    image = Image.new("L", (8, 4), 70)
    for suffix in ("png", "webp", "jpg"):
        read = read_image(save(tmp_path / f"a.{suffix}", image, exif=b"Exif\0\0" + exif))
        assert (read.size, read.convert("L").getextrema()) == (size, (70, 70))


def truncated(image_format: str, size: int) -> bytes:
    buffer = io.BytesIO()
    Image.effect_noise((64, 64), 50).save(buffer, image_format)
    return buffer.getvalue()[:size]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (truncated("JPEG", 900), "truncated"),
        (b"not pixels", "it is not an image of a known format; convert it to TIFF, PNG or JPEG$"),
        (b"", "it is empty"),
        (b"version https://git-lfs.github.com/spec/v1", "a pointer of Git LFS"),
        (lambda path: None, "there is no such file"),
        (Path.mkdir, "it is a folder; name its files"),
        (os.mkfifo, "it is not a regular file$"),
    ],
)
def test_damaged_and_special_files_are_unreadable(tmp_path: Path, make: Any, reason: str) -> None:
    path = tmp_path / "p.png"
    path.write_bytes(make) if isinstance(make, bytes) else make(path)
    with pytest.raises(UnreadableImage, match=rf"p\.png: .*{reason}") as raised:
        read_image(path)
    assert not ImageFile.LOAD_TRUNCATED_IMAGES
    error = pickle.loads(pickle.dumps(raised.value))
    assert isinstance(error, InputError)
    assert (error.path, error.reason) == (str(path), raised.value.reason)
    if "not a regular" in reason and not path.is_dir():  # it is not opened, but not left out either
        assert find_images([str(path)])[0] == find_images([str(tmp_path)])[0] == [path]
        with pytest.raises(UnreadableImage, match=reason):
            ImageFiles([path], [0]).load(0)


def test_a_folder_that_is_gone_is_an_error_of_all_its_images(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="its folder is missing") as error:
        read_image(tmp_path / "share/1.png")
    assert not isinstance(error.value, UnreadableImage)  # which commands leave out


def test_a_decompression_bomb_is_unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "a.png", make_gradient())
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 16)
    with pytest.raises(UnreadableImage, match="bomb"):
        read_image(path)


@pytest.mark.parametrize(("count", "expected"), [(1, "^1 image cannot"), (1200, "^1,200 images cannot")])
def test_one_unreadable_image_is_singular(count: int, expected: str) -> None:
    with pytest.raises(InputError, match=expected + r" be read, more than max_unreadable \(0\): a.png"):
        check_unreadable(["a.png: it is empty"] * count, 0)
