import pytest

from lambdanets.data.images import UnreadableImage
from lambdanets.web.uploads import FORMATS, MAX_BYTES, read_upload
from web.uploads import TOO_LARGE, encode, png_of_size, readable_files, rgb, slow_jpeg, unreadable_files


@pytest.mark.parametrize(("name", "content", "reason"), unreadable_files(), ids=[row[0] for row in unreadable_files()])
def test_unreadable_file_gives_one_sentence(name, content, reason):
    with pytest.raises(UnreadableImage) as error:
        read_upload(content, name)
    assert reason in str(error.value)
    assert name in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("name", "content"), readable_files(), ids=[row[0] for row in readable_files()])
def test_unusual_image_is_read(name, content):
    image = read_upload(content, name)
    assert image.mode in ("L", "RGB")


def test_file_above_the_limit_is_rejected_before_it_is_decoded(monkeypatch):
    monkeypatch.setattr("lambdanets.web.uploads.read_image", None)
    name, content = TOO_LARGE
    assert len(content) > MAX_BYTES
    with pytest.raises(UnreadableImage, match=r"it has 3\.6 MB, more than 2 MB"):
        read_upload(content, name)


def test_image_with_too_many_pixels_is_not_decoded(monkeypatch):
    from PIL import ImageFile

    monkeypatch.setattr(ImageFile.ImageFile, "load", None)
    content = png_of_size(3000, 3000)
    assert len(content) < 10_000
    with pytest.raises(UnreadableImage, match="more than 4,000,000"):
        read_upload(content, "bomb.png")


def test_decoding_stops_after_the_time_limit():
    with pytest.raises(UnreadableImage, match=r"decoding it takes more than 0\.1 seconds"):
        read_upload(slow_jpeg(), "slow.jpg", max_seconds=0.1)


@pytest.mark.parametrize("image_format", FORMATS)
def test_formats_that_the_page_names_are_read(image_format):
    assert read_upload(encode(rgb(), image_format), "image").size == (12, 12)


def test_sentence_names_only_the_end_of_a_long_path():
    with pytest.raises(UnreadableImage) as error:
        read_upload(b"", f"/secret/{'x' * 300}.png")
    assert "secret" not in str(error.value)
    assert len(str(error.value)) < 150
