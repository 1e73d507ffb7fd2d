import io
import tarfile
from pathlib import Path

import pytest
from PIL import Image

from data.coco.coco_files import write_tar
from lambdanets.data.datasets import open_splits
from lambdanets.data.images import UnreadableImage
from lambdanets.errors import InputError


def png(value: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("L", (4, 4), value).save(buffer, "PNG")
    return buffer.getvalue()


def test_a_tar_and_its_validation_tar_become_the_splits(tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "train.tar", {f"train/{name}/{i}.png": png(i) for name in "ab" for i in range(3)})
    write_tar(tmp_path / "val.tar", {"val/b/0.png": png(9)})
    splits = open_splits(str(tar))
    assert splits.classes == ("a", "b")
    assert [splits.train.load(index)[0].getpixel((0, 0)) for index in range(6)] == [0, 1, 2, 0, 1, 2]
    assert (splits.validation.load(0)[1], splits.validation.name(0)) == (1, f"{tmp_path}/val.tar/val/b/0.png")


def test_validation_is_held_out_of_a_tar_without_validation_tar(tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "all.tar", {f"{name}/{i}.png": png(i) for name in "ab" for i in range(5)})
    splits = open_splits(str(tar))
    assert (len(splits.train), len(splits.validation)) == (8, 2)


def test_nested_tars_are_read(tmp_path: Path) -> None:
    nested = {
        name: write_tar(tmp_path / f"{name}.nested", {f"{i}.png": png(40 + i) for i in range(3)}).read_bytes()
        for name in "ab"
    }
    tar = write_tar(tmp_path / "all.tar", {f"{name}.tar": content for name, content in nested.items()})
    splits = open_splits(str(tar))
    assert splits.classes == ("a", "b")
    assert {splits.train.load(index)[0].getpixel((0, 0)) for index in range(len(splits.train))} == {40, 41, 42}


def test_a_damaged_image_in_a_tar_is_unreadable(tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "all.tar", {f"{name}/{i}.png": b"no image" for name in "ab" for i in range(3)})
    with pytest.raises(UnreadableImage, match=r"all\.tar/a/"):
        open_splits(str(tar)).train.load(0)


@pytest.mark.parametrize("content", [b"", b"text" * 400])
def test_rejects_a_file_with_tar_suffix_that_is_not_a_tar(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "all.tar").write_bytes(content)
    with pytest.raises(InputError, match=r"all\.tar"):
        open_splits(str(tmp_path / "all.tar"))


def header_offsets(tar: bytes) -> list[int]:
    """Return the offset of the header of each member, and of the end-of-archive blocks."""
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        members = archive.getmembers()
        return [member.offset for member in members] + [archive.offset]


@pytest.mark.parametrize("bytes_of_header", [0, 100, 512])
def test_rejects_a_tar_truncated_within_or_before_a_header(tmp_path: Path, bytes_of_header: int) -> None:
    tar = write_tar(tmp_path / "all.tar", {f"{name}/{i}.png": png(i) for name in "ab" for i in range(4)})
    content = tar.read_bytes()
    tar.write_bytes(content[: header_offsets(content)[6] + bytes_of_header])
    with pytest.raises(
        InputError, match=r"all\.tar must be a complete, uncompressed tar: (it is truncated|unexpected)"
    ):
        open_splits(str(tar))


def test_rejects_a_tar_without_end_of_archive_and_explains_the_fix(tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "all.tar", {f"{name}/{i}.png": png(i) for name in "ab" for i in range(4)})
    content = tar.read_bytes()
    tar.write_bytes(content[: header_offsets(content)[-1]])
    with pytest.raises(InputError, match="append 1,024 zero bytes"):
        open_splits(str(tar))
    tar.write_bytes(tar.read_bytes() + bytes(1024))
    assert len(open_splits(str(tar)).train) == 6


def test_rejects_concatenated_tars_and_a_damaged_header(tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "all.tar", {f"{name}/{i}.png": png(i) for name in "ab" for i in range(4)})
    content = tar.read_bytes()
    tar.write_bytes(content + content)
    with pytest.raises(InputError, match="followed by another tar"):
        open_splits(str(tar))
    offset = header_offsets(content)[3]
    tar.write_bytes(content[:offset] + b"x" + content[offset + 1 :])
    with pytest.raises(InputError, match=f"it is damaged at byte {offset}"):
        open_splits(str(tar))


@pytest.mark.parametrize("truncated", ["within a header", "between members", "within an image"])
def test_rejects_a_truncated_nested_tar(tmp_path: Path, truncated: str) -> None:
    nested = write_tar(tmp_path / "a.nested", {f"{i}.png": png(i) for i in range(3)}).read_bytes()
    extra_bytes = {"within a header": 100, "between members": 0, "within an image": 520}[truncated]
    offset = header_offsets(nested)[2] + extra_bytes
    tar = write_tar(tmp_path / "all.tar", {"a.tar": nested[:offset], "b.tar": nested})
    with pytest.raises(InputError, match=r"all\.tar must be a complete, uncompressed tar: it is truncated after"):
        open_splits(str(tar))


@pytest.mark.parametrize("names", [[], ["a", "b"], ["a/notes.txt", "b/notes.txt"]])
def test_rejects_a_tar_without_images(tmp_path: Path, names: list[str]) -> None:
    with tarfile.open(tmp_path / "all.tar", "w") as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.type = tarfile.REGTYPE if "." in name else tarfile.DIRTYPE
            tar.addfile(member)
    with pytest.raises(InputError, match=r"all\.tar' must have one sub-folder of images per class, got no images"):
        open_splits(str(tmp_path / "all.tar"))
