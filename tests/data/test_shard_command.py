from pathlib import Path

import pytest

import lambdanets.cli.shard
from lambdanets.cli import main
from lambdanets.errors import InputError


def shard(*arguments: object) -> int:
    return lambdanets.cli.shard.main([str(argument) for argument in arguments])


def test_shard_writes_and_verifies_a_folder_of_images(
    two_classes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (two_classes / "dark/00.png").write_bytes(b"no image")
    assert shard(two_classes, tmp_path / "out", "--images-per-shard", 4, "--processes", 2, "--verify") == 0
    out = capsys.readouterr().out
    assert "skipped 1 unreadable images:" in out
    assert f"19 images in 5 shards of {tmp_path}/out" in out
    assert "5 of 5 shards are intact" in out


def test_verify_of_a_missing_shard_exits_with_2(
    two_classes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shard(two_classes, tmp_path / "out", "--unlabeled", "--images-per-shard", 10)
    (tmp_path / "out/train-00001.tar").unlink()
    assert shard(tmp_path / "out", "--verify") == 2
    out = capsys.readouterr().out
    assert "train-00001.tar: there is no such file\n1 of 2 shards are intact; 20 images in shards.json" in out


def test_index_writes_shards_json_with_class_names(
    two_classes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shard(two_classes, tmp_path / "out")
    (tmp_path / "out/shards.json").unlink()
    (tmp_path / "names").write_text("black\nwhite\n")
    assert shard(tmp_path / "out", "--index", "--classes", tmp_path / "names") == 0
    assert "train: 16 images in 1 shards\nvalidation: 4 images in 1 shards\n2 classes;" in capsys.readouterr().out


def test_rejects_incompatible_options(two_classes: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="OUT, or one of --verify and --index, must be given"):
        shard(two_classes)
    with pytest.raises(InputError, match="OUT must not be given with --index"):
        shard(two_classes, tmp_path / "out", "--index")
    with pytest.raises(InputError, match="--processes must be greater than 0"):
        shard(two_classes, tmp_path / "out", "--processes", 0)
    with pytest.raises(InputError, match="a folder of images with --unlabeled"):
        shard("digits", tmp_path / "out", "--unlabeled")


def test_rejects_an_empty_folder_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["shard", "", str(tmp_path / "out")]) == 2
    assert "DATA must have a value, got ''" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--verify", "--classes", "names"), "--classes has no effect when verifying shards"),
        (("--verify", "--unlabeled"), "--unlabeled has no effect when verifying shards"),
        (("--verify", "--no-check-images"), "--no-check-images has no effect when verifying shards"),
        (("--index", "--unlabeled"), "--unlabeled has no effect when indexing shards"),
        (("--index", "--processes", "1"), "--processes has no effect when indexing shards"),
        (("--index", "--images-per-shard", "5"), "--images-per-shard has no effect when indexing shards"),
        (("OUT", "--classes", "names"), "--classes has no effect when writing shards"),
        (("OUT", "--unlabeled", "--data-root", "x"), "--data-root has no effect when writing images without classes"),
        (("OUT", "--unlabeled", "--validation-share", "0.5"), "--validation-share has no effect when writing images"),
        (("--unlabeled",), "OUT, or one of --verify and --index, must be given"),
        (("--classes", "names"), "OUT, or one of --verify and --index, must be given"),
        (("--index", "--verify"), "OUT, or one of --verify and --index, must be given"),
        (("--index", "--classes", "names"), "classes must be a readable text file, got names"),
    ],
)
def test_rejects_options_without_effect(
    arguments: tuple[str, ...], message: str, two_classes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert main(["shard", str(two_classes), *(out if argument == "OUT" else argument for argument in arguments)]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert message in error
    assert not (tmp_path / "out").exists()
