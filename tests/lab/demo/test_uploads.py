"""Files that a page for everyone must expect."""

import numpy as np
import pytest
import tifffile

from lab.demo.uploads import readable_files, slow_jpeg, unreadable_files
from lambdanets.data.images import UnreadableImage, read_image
from lambdanets_lab.demo.uploads import read_upload


@pytest.mark.parametrize(("name", "content", "reason"), unreadable_files(), ids=[row[0] for row in unreadable_files()])
def test_unreadable_file_gives_one_sentence(name, content, reason):
    with pytest.raises(UnreadableImage) as error:
        read_upload(content, name)
    assert reason in str(error.value)
    assert name in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("name", "content"), readable_files(), ids=[row[0] for row in readable_files()])
def test_unusual_image_is_read(name, content):
    assert read_upload(content, name).mode in ("L", "RGB")


def test_decoding_stops_after_the_time_limit():
    with pytest.raises(UnreadableImage, match=r"decoding it takes more than 0\.1 seconds"):
        read_upload(slow_jpeg(), "slow.jpg", max_seconds=0.1)


def test_stack_needs_a_channel_as_in_the_commands(tmp_path):
    planes = np.arange(3 * 30 * 40, dtype=np.uint16).reshape(3, 30, 40)
    tifffile.imwrite(tmp_path / "stack.tif", planes, photometric="minisblack")
    content = (tmp_path / "stack.tif").read_bytes()
    with pytest.raises(UnreadableImage, match=r"3 channels or planes.*choose one with --channel"):
        read_upload(content, "stack.tif")
    expected = read_image(tmp_path / "stack.tif", channel=2, stretch=True)
    assert read_upload(content, "stack.tif", 2, stretch=True).tobytes() == expected.tobytes()
    tifffile.imwrite(tmp_path / "bomb.tif", np.zeros((2500, 2500), np.uint16), compression="zlib")
    with pytest.raises(UnreadableImage, match="more than 5,000,000"):
        read_upload((tmp_path / "bomb.tif").read_bytes(), "bomb.tif")
