import io
import json
import tarfile
import tempfile
from pathlib import Path

import pytest
from PIL import Image

from lambdanets.data.datasets import open_splits
from lambdanets.data.shards import checks
from lambdanets.data.shards.checks import index_shards, verify_shards
from lambdanets.data.shards.images import ShardedImages, open_shards
from lambdanets.errors import InputError


def jpeg(value: int) -> bytes:
    content = io.BytesIO()
    Image.new("L", (8, 8), value).save(content, "JPEG")
    return content.getvalue()


def write_tar(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def test_verify_accepts_intact_shards(shards: Path) -> None:
    result = verify_shards(str(shards), threads=2)
    assert (result.num_shards, result.num_images, result.damaged) == (10, 20, [])


def test_verify_names_corrupt_truncated_and_missing_shards(shards: Path) -> None:
    corrupt, truncated, missing = (shards / f"train-0000{number}.tar" for number in (0, 1, 2))
    content = bytearray(corrupt.read_bytes())
    content[700] ^= 1
    corrupt.write_bytes(content)
    truncated.write_bytes(truncated.read_bytes()[:-512])
    missing.unlink()
    first, second, third = verify_shards(str(shards)).damaged
    assert first == f"{corrupt}: its SHA-256 differs from shards.json"
    assert second.startswith(f"{truncated}: it has ")
    assert third == f"{missing}: there is no such file"


def test_verify_names_a_shard_with_a_wrong_image_count(shards: Path) -> None:
    path = shards / "shards.json"
    path.write_text(path.read_text().replace('"images": 2', '"images": 3', 1))
    (message,) = verify_shards(str(shards)).damaged
    assert message == f"{shards}/train-00000.tar: it has 2 images, not 3"


def test_verify_rejects_a_folder_without_shards_json(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"shards\.json cannot be read: there is no such file"):
        verify_shards(str(tmp_path))


def test_webdataset_reads_our_shards(two_classes: Path, shards: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    train = open_shards(str(shards))[0]["train"]
    urls = sorted(str(path) for path in shards.glob("train-*.tar"))
    read = list(webdataset.WebDataset(urls, shardshuffle=False).decode("pil").to_tuple("__key__", "png", "cls"))
    assert [key for key, _, _ in read] == [train.key(index) for index in range(16)]
    for index, (_, image, label) in enumerate(read):
        expected_image, expected_label = train.load(index)
        assert (image.tobytes(), label) == (expected_image.tobytes(), expected_label)


def test_shards_written_by_webdataset_are_indexed_and_read(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    for shard, count in (("train-0", 3), ("train-1", 2), ("Valid-0", 2)):
        with webdataset.TarWriter(str(tmp_path / f"{shard}.tar")) as writer:
            for number in range(count):
                sample = {"jpg": jpeg(40 * number), "cls": number, "json": {"width": 8}, "txt": "a caption"}
                writer.write({"__key__": f"{shard}-{number}", **sample})
    assert index_shards(tmp_path).classes == ("0", "1", "2")
    splits = open_splits(str(tmp_path))
    train = splits.train
    assert isinstance(train, ShardedImages)
    assert (len(train), len(splits.validation)) == (5, 2)
    assert [train.load(index)[1] for index in range(5)] == [0, 1, 2, 0, 1]
    assert train.load(2)[0].getpixel((0, 0)) == 80
    assert train.key(4) == "train-1-1"
    assert verify_shards(str(tmp_path)).damaged == []


def test_index_accepts_any_member_order_and_ignores_other_files(tmp_path: Path) -> None:
    members = {
        "./a/1.cls": b"1",
        "./a/1.json": b"{}",
        "./a/1.JPG": jpeg(1),
        "./a/2.txt": b"no image",
        "./a/3.seg.png": b"a mask",
        "./a/3.webp": jpeg(3),
        "./a/3.cls": b"0\n",
        "./a/.hidden.png": b"",
        "./README": b"",
    }
    write_tar(tmp_path / "0.tar", members)
    index_shards(tmp_path, ["no", "yes"])
    images = open_shards(str(tmp_path))[0]["train"]
    assert [(images.key(index), images.load(index)[1]) for index in range(2)] == [("./a/1", 1), ("./a/3", 0)]


def test_images_without_classes_are_indexed_without_classes(tmp_path: Path) -> None:
    write_tar(tmp_path / "00000.tar", {"1.jpg": jpeg(1), "1.json": b"{}", "2.jpg": jpeg(2)})
    assert index_shards(tmp_path).classes == ()
    assert len(open_shards(str(tmp_path))[0]["train"]) == 2


def test_index_rejects_names_of_classes_that_no_image_has(tmp_path: Path) -> None:
    write_tar(tmp_path / "00000.tar", {"1.jpg": jpeg(1)})
    with pytest.raises(InputError, match=r"classes must be None for images without classes \(\.cls\), got 2 names"):
        index_shards(tmp_path, ["no", "yes"])
    assert not (tmp_path / "shards.json").exists()


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"1.jpg": b"x", "1.cls": b"0", "2.jpg": b"x"}, r"must have a class \(\.cls\), got none for '2\.jpg'"),
        ({"1.jpg": b"x", "1.cls": b"cat"}, r"class of '1\.jpg' .* must be a number, got b'cat'"),
        ({"1.jpg": b"x", "1.cls": b"2"}, "classes must be at least 3 names, .* got 2"),
        ({"1.txt": b"x"}, "0.tar must have images, got none"),
    ],
)
def test_index_rejects_tars_with_invalid_samples(tmp_path: Path, members: dict[str, bytes], message: str) -> None:
    write_tar(tmp_path / "0.tar", members)
    with pytest.raises(InputError, match=message):
        index_shards(tmp_path, ["a", "b"])


def test_index_rejects_truncated_tars_and_mixed_sets(tmp_path: Path) -> None:
    write_tar(tmp_path / "0.tar", {"1.jpg": jpeg(1)})
    write_tar(tmp_path / "1.tar", {"1.jpg": jpeg(1), "1.cls": b"0"})
    with pytest.raises(InputError, match=r"got both: .*1\.tar differs from .*0\.tar"):
        index_shards(tmp_path)
    content = (tmp_path / "1.tar").read_bytes()
    folder = tmp_path / "splits"
    folder.mkdir()
    for name in ("valley-0", "val-0", "test-0"):  # the first is of training
        (folder / f"{name}.tar").write_bytes(content)
    with pytest.raises(InputError, match="a validation or of a test split, got both"):
        index_shards(folder)
    (folder / "test-0.tar").unlink()
    assert index_shards(folder).splits["train"][0].name == "valley-0.tar"
    for length in (1024, 1124, 1700, len(content) - len(content) % 10240 + 600):
        (tmp_path / "0.tar").write_bytes(content[:length])
        if length < len(content):
            with pytest.raises(InputError, match=r"0\.tar must be a complete tar file"):
                index_shards(tmp_path)


def test_index_rejects_folders_without_tars_or_with_shards_json(tmp_path: Path, shards: Path) -> None:
    with pytest.raises(InputError, match="must have tar files of training images, got none"):
        index_shards(tmp_path)
    with pytest.raises(InputError, match="exists; remove it"):
        index_shards(shards)
    with pytest.raises(InputError, match="which does not exist"):
        index_shards(tmp_path / "nowhere")
    assert json.loads((shards / "shards.json").read_text())["classes"] == ["dark", "light"]


def test_interrupted_verification_removes_its_cache(shards: Path, tmp_path: Path, monkeypatch) -> None:
    def interrupt(store, shard):
        raise KeyboardInterrupt

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(checks, "_check_shard", interrupt)
    with pytest.raises(KeyboardInterrupt):
        verify_shards(str(shards))
    assert not list(tmp_path.glob("lambdanets-verify-*"))
