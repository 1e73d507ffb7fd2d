import io
import tarfile
from pathlib import Path

import pytest

from data.coco.coco_files import png, write_tar
from lambdanets.data.datasets import open_splits
from lambdanets.errors import InputError

FILES = {f"{name}/{number}.png": png(value=number) for name in "ab" for number in range(4)}


def header_offsets(tar: bytes) -> list[int]:
    """Return the offset of the header of each member, and of the end-of-archive blocks."""
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        members = archive.getmembers()
        return [member.offset for member in members] + [archive.offset]


def test_nested_tars_are_classes_and_validation_is_held_out_of_them(tmp_path: Path) -> None:
    nested = write_tar(tmp_path / "a.nested", {f"{i}.png": png(value=40 + i) for i in range(4)}).read_bytes()
    splits = open_splits(str(write_tar(tmp_path / "all.tar", {"a.tar": nested, "b.tar": nested})))
    assert splits.train.classes == ("a", "b")
    assert (len(splits.train), len(splits.validation)) == (6, 2)
    assert {splits.train.load(index)[0].getpixel((0, 0)) for index in range(6)} <= {40, 41, 42, 43}
    offset = header_offsets(nested)[2]
    for size in (offset + 100, offset, offset + 520):  # within a header, between members, within an image
        write_tar(tmp_path / "all.tar", {"a.tar": nested[:size], "b.tar": nested})
        with pytest.raises(InputError, match=r"must be a complete, uncompressed tar: .*(truncated|unexpected end)"):
            open_splits(str(tmp_path / "all.tar"))


def test_a_file_with_two_names_in_a_tar_is_an_image_under_both(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "all.tar", FILES)
    with tarfile.open(path, "a") as tar:
        link = tarfile.TarInfo("b/linked.png")
        link.type, link.linkname = tarfile.LNKTYPE, "a/3.png"
        tar.addfile(link)
    splits = open_splits(str(path))
    pixels = [
        images.load(index)[0].getpixel((0, 0))
        for images in (splits.train, splits.validation)
        for index in range(len(images))
    ]
    assert sorted(pixels) == [0, 0, 1, 1, 2, 2, 3, 3, 3]


def test_symbolic_links_in_a_tar_are_counted(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "all.tar", FILES)
    with tarfile.open(path, "a") as tar:
        for name in ("b/linked.PNG", "more.tar", "c"):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, "../a/3.png"
            tar.addfile(link)
    splits = open_splits(str(path))
    assert (len(splits.train), len(splits.validation)) == (6, 2)
    assert splits.left_out == {"as a link (write the tar with --dereference)": 3}


def test_damaged_truncated_and_other_files_are_refused(tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "all.tar", FILES)
    content = tar.read_bytes()
    offsets = header_offsets(content)
    damaged = content[: offsets[3]] + b"x" + content[offsets[3] + 1 :]
    for changed, reason in (
        (b"text" * 400, ""),
        (content[: offsets[6]], "append 1,024 zero bytes"),
        (content[: offsets[6] + 100], "(it is truncated|unexpected)"),
        (content[: offsets[-1]], "append 1,024 zero bytes"),
        (content + content, "followed by another tar"),
        (damaged, f"at byte {offsets[3]}"),
    ):
        tar.write_bytes(changed)
        with pytest.raises(InputError, match=rf"all\.tar must be a complete, uncompressed tar: .*{reason}"):
            open_splits(str(tar))
    tar.write_bytes(content[: offsets[-1]] + bytes(1024))
    assert len(open_splits(str(tar)).train) == 6
