"""Datasets are written as shards, resumed, verified and indexed."""

import json
import shutil
import tarfile
import threading
from pathlib import Path

import pytest
from PIL import Image

from commands import contents
from data.coco.coco_files import write_tar
from lambdanets.cli import main
from lambdanets.data.datasets import open_splits
from lambdanets.data.image_search import find_images
from lambdanets.data.shards import UNLABELED, open_shards
from lambdanets.errors import InputError
from lambdanets_lab import shards as module
from lambdanets_lab.shards import index_shards, verify_shards, write_shards


def test_image_files_are_copied_byte_for_byte(two_classes, tmp_path):
    Image.open(two_classes / "dark/00.png").save(two_classes / "dark/photo.JPG", quality=40)
    originals = open_splits(str(two_classes))
    content = write_shards(originals, tmp_path / "out", images_per_shard=4)
    splits = open_shards(str(tmp_path / "out"))
    for name, images in (("train", originals.train), ("validation", originals.validation)):
        paths = [Path(images.name(index)) for index in range(len(images))]
        split, indices = splits[name], range(len(splits[name]))
        contents_by_key = {split.key(index): split.file(index).open().read() for index in indices}
        assert contents_by_key == {f"{path.parent.name}/{path.stem}": path.read_bytes() for path in paths}
        labels = [("dark", "light").index(split.key(index).split("/")[0]) for index in indices]
        assert split.labels.tolist() == [split.load(index)[1] for index in indices] == labels
    assert splits["train"].classes == ("dark", "light")
    assert (sum(shard.images for shard in content.shards), content.metadata["unreadable"]) == (21, [])
    assert {shard.name for shard in content.shards} == {path.name for path in (tmp_path / "out").glob("*.tar")}


def test_images_in_memory_are_written_as_png_in_similar_shards(tmp_path):
    splits = open_splits("digits")
    write_shards(splits, tmp_path / "out", images_per_shard=500, check_images=False)
    train = open_shards(str(tmp_path / "out"))["train"]
    assert max(train.shard_sizes) - min(train.shard_sizes) <= 1
    assert set(train.labels[: train.shard_sizes[0]].tolist()) == set(range(10))
    originals = {splits.train.name(index): index for index in range(len(splits.train))}
    for index in range(0, len(train), 100):
        image, label = splits.train.load(originals[f"digits/{train.key(index)}"])
        assert (train.load(index)[0].tobytes(), train.load(index)[1]) == (image.tobytes(), label)
        assert train.name(index).endswith(".png")


def test_a_list_of_images_is_written_without_classes(two_classes, tmp_path):
    write_shards(find_images([str(two_classes)])[0], tmp_path / "out", images_per_shard=7)
    splits = open_shards(str(tmp_path / "out"))
    assert (list(splits), splits["train"].classes) == (["train"], ())
    assert splits["train"].labels.tolist() == [splits["train"].load(0)[1]] * 20 == [UNLABELED] * 20


def test_written_bytes_do_not_depend_on_the_number_of_threads(two_classes, tmp_path):
    write_shards(open_splits(str(two_classes)), tmp_path / "first", images_per_shard=3)
    splits = open_splits(str(tmp_path / "first"))  # shards can be written from shards
    for threads in (1, 2):
        write_shards(splits, tmp_path / str(threads), images_per_shard=5, threads=threads)
    assert contents(tmp_path / "1") == contents(tmp_path / "2")
    write_shards(splits, tmp_path / "3", images_per_shard=5, seed=1)
    assert contents(tmp_path / "1") != contents(tmp_path / "3")


def test_threads_read_files_at_the_same_time(two_classes, tmp_path, monkeypatch):
    both, read = threading.Barrier(2, timeout=20), module.open_image
    monkeypatch.setattr(module, "first_readable", lambda *arguments: None)
    monkeypatch.setattr(module, "open_image", lambda file: (both.wait(), read(file))[1])
    write_shards(find_images([str(two_classes)])[0], tmp_path / "out", images_per_shard=10, threads=2)


def test_failed_writing_resumes_without_rewriting_finished_shards(two_classes, tmp_path, monkeypatch):
    splits = open_splits(str(two_classes))
    write_shards(splits, tmp_path / "uninterrupted", images_per_shard=3)
    with tarfile.open(tmp_path / "uninterrupted/train-00003.tar") as tar:
        failing = tar.getnames()[0]

    def fail(content, name):
        if name.endswith(failing):
            raise RuntimeError("the disk is gone")

    monkeypatch.setattr(module, "first_readable", lambda *arguments: None)
    with monkeypatch.context() as patch:
        patch.setattr(module, "read_image", fail)
        with pytest.raises(RuntimeError, match="the disk is gone"):
            write_shards(splits, tmp_path / "out", images_per_shard=3, threads=2)
    assert not (tmp_path / "out/shards.json").exists()
    finished = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.tar")}
    assert 2 <= len(finished) < 8
    with pytest.raises(InputError, match="seed must be 0, got 1"):
        write_shards(splits, tmp_path / "out", images_per_shard=3, seed=1)
    write_shards(splits, tmp_path / "out", images_per_shard=3)
    assert finished == {path: path.stat().st_mtime_ns for path in finished}
    assert contents(tmp_path / "out") == contents(tmp_path / "uninterrupted")


def test_unreadable_images_are_skipped_and_listed(two_classes, tmp_path):
    splits = open_splits(str(two_classes))
    (two_classes / "dark/03.png").write_bytes(b"no image")
    (two_classes / "light/04.png").write_bytes((two_classes / "light/05.png").read_bytes()[:50])
    (two_classes / "light/06.png").unlink()
    content = write_shards(splits, tmp_path / "out", images_per_shard=4, threads=2)
    assert sum(shard.images for shard in content.shards) == 17
    unreadable = content.metadata["unreadable"]
    assert unreadable[0].startswith(f"{two_classes}/dark/03.png: it is not an image of a known format")
    assert [message.partition(":")[0][-12:] for message in unreadable[1:]] == ["light/04.png", "light/06.png"]


def test_verify_names_corrupt_truncated_and_missing_shards(shards):
    assert verify_shards(str(shards), threads=2)[1] == []
    corrupt, truncated, missing = (shards / f"train-0000{number}.tar" for number in (0, 1, 2))
    content = bytearray(corrupt.read_bytes())
    content[700] ^= 1
    corrupt.write_bytes(content)
    truncated.write_bytes(truncated.read_bytes()[:-512])
    missing.unlink()
    path = shards / "shards.json"
    shard_list = json.loads(path.read_text())
    shard_list["splits"]["train"][3]["images"] = 3
    path.write_text(json.dumps(shard_list))
    first, second, third, fourth = verify_shards(str(shards))[1]
    assert first == f"{corrupt}: its SHA-256 differs from shards.json"
    assert second == f"{truncated}: its SHA-256 differs from shards.json"
    assert third == f"{missing}: there is no such file"
    assert fourth == f"{shards}/train-00003.tar: it has 2 images, not 3"


def test_webdataset_reads_our_shards(shards):
    webdataset = pytest.importorskip("webdataset")
    train = open_shards(str(shards))["train"]
    urls = sorted(str(path) for path in shards.glob("train-*.tar"))
    read = list(webdataset.WebDataset(urls, shardshuffle=False).decode("pil").to_tuple("__key__", "png", "cls"))
    assert [key for key, _, _ in read] == [train.key(index) for index in range(16)]
    for index, (_, image, label) in enumerate(read):
        expected_image, expected_label = train.load(index)
        assert (image.tobytes(), label) == (expected_image.tobytes(), expected_label)


def test_shards_written_by_webdataset_are_indexed_and_read(tmp_path, two_classes, monkeypatch):
    webdataset = pytest.importorskip("webdataset")
    png = (two_classes / "dark/00.png").read_bytes()
    for shard, count in (("train-0", 3), ("train-1", 2), ("train-2", 0), ("Valid-0", 2)):
        with webdataset.TarWriter(str(tmp_path / f"{shard}.tar")) as writer:
            for number in range(count):
                sample = {"png": png, "cls": number, "json": {"width": 8}, "txt": "a caption"}
                writer.write({"__key__": f"{shard}-{number}", **sample})
    assert index_shards(tmp_path).classes == ("0", "1", "2")
    splits = open_splits(str(tmp_path))
    assert (len(splits.train), len(splits.validation)) == (5, 2)
    assert [splits.train.load(index)[1] for index in range(5)] == [0, 1, 2, 0, 1]
    assert verify_shards(str(tmp_path))[1] == []
    with pytest.raises(InputError, match="exists; remove it"):
        index_shards(tmp_path)
    (tmp_path / "shards.json").unlink()
    shutil.copy(tmp_path / "train-2.tar", tmp_path / "Valid-0.tar")
    with pytest.raises(InputError, match="of the validation split, got none"):
        index_shards(tmp_path)
    monkeypatch.setattr("os.access", lambda *arguments: False)
    with pytest.raises(InputError, match="must be a writable folder"):
        index_shards(tmp_path)


def test_a_copy_of_finished_shards_without_hidden_files_is_finished(two_classes, tmp_path):
    splits, copy = open_splits(str(two_classes)), tmp_path / "copy"
    written = write_shards(splits, tmp_path / "out", images_per_shard=4)
    shutil.copytree(tmp_path / "out", copy, ignore=shutil.ignore_patterns(".*"))  # as cp out/* copy
    assert write_shards(splits, copy, images_per_shard=4) == written
    with pytest.raises(InputError, match=r"images_per_shard must be 4, got 5, since .*copy was started so"):
        write_shards(splits, copy, images_per_shard=5)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"1.jpg": b"x", "1.cls": b"0", "2.jpg": b"x"}, r"must have a class \(\.cls\), got both"),
        ({"1.jpg": b"x", "1.cls": b"2"}, "classes must be 3 names or more, .* got 2"),
        ({"1.jpg": b"x", "2.05.jpg": b"x", "2.05.json": b""}, "images of '2' must be named KEY.SUFFIX, without dots"),
        (None, "0.tar must be a complete tar file"),
    ],
)
def test_index_rejects_tars_with_invalid_samples(tmp_path, members, message):
    write_tar(tmp_path / "0.tar", members or {"1.jpg": b"x"})
    if members is None:
        (tmp_path / "0.tar").write_bytes((tmp_path / "0.tar").read_bytes()[:1100])
    with pytest.raises(InputError, match=message):
        index_shards(tmp_path, ["a", "b"])
    assert not (tmp_path / "shards.json").exists()


def test_shard_command_writes_verifies_and_indexes(two_classes, tmp_path, capsys):
    def shard(*arguments):
        code = main(["shard", *map(str, arguments)])
        return code, "".join(capsys.readouterr())

    for option in (("--validation-share", 2), ("--classes", tmp_path / "names")):
        assert shard(two_classes, tmp_path / "out", *option)[0] == 2
    (two_classes / "dark/00.png").write_bytes(b"no image")
    code, out = shard(two_classes, tmp_path / "out", "--images-per-shard", 4, "--threads", 2, "--verify")
    assert code == 0
    assert "skipped 1 unreadable image:\n" in out
    assert f"19 images in 5 shards of {tmp_path}/out" in out
    assert "5 of 5 shards intact" in out
    (tmp_path / "out/shards.json").unlink()
    (tmp_path / "names").write_text("black\nwhite\n\n", encoding="utf-8-sig")  # as Windows' Notepad
    assert shard(tmp_path / "out", "--index", "--classes", tmp_path / "names")[0] == 0
    assert open_shards(str(tmp_path / "out"))["train"].classes == ("black", "white")
    (tmp_path / "out/train-00001.tar").unlink()
    code, out = shard(tmp_path / "out", "--verify")
    assert code == 2
    assert "train-00001.tar: there is no such file\n4 of 5 shards intact; 19 images in shards.json" in out
