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
    assert "left out 1 images that could not be read:" in out
    assert f"19 images in 5 shards of {tmp_path}/out" in out
    assert "5 of 5 shards are whole" in out


def test_verify_names_bad_shards_with_exit_code_2(
    two_classes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shard(two_classes, tmp_path / "out", "--unlabelled", "--images-per-shard", 10)
    (tmp_path / "out/train-00001.tar").unlink()
    assert shard(tmp_path / "out", "--verify") == 2
    out = capsys.readouterr().out
    assert "train-00001.tar: there is no such file\n1 of 2 shards are whole; 20 images by their list" in out


def test_index_lists_foreign_shards_with_class_names(
    two_classes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shard(two_classes, tmp_path / "out")
    (tmp_path / "out/shards.json").unlink()
    (tmp_path / "names").write_text("black\nwhite\n")
    assert shard(tmp_path / "out", "--index", "--classes", tmp_path / "names") == 0
    assert "train: 16 images in 1 shards\nvalidation: 4 images in 1 shards\n2 classes;" in capsys.readouterr().out


def test_rejects_incompatible_options(two_classes: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="name a folder for the shards"):
        shard(two_classes)
    with pytest.raises(InputError, match="takes no second folder"):
        shard(two_classes, tmp_path / "out", "--index")
    with pytest.raises(InputError, match="processes must be at least 1"):
        shard(two_classes, tmp_path / "out", "--processes", 0)
    with pytest.raises(InputError, match="a folder of images with --unlabelled"):
        shard("digits", tmp_path / "out", "--unlabelled")


@pytest.mark.parametrize("options", [["OUT"], ["OUT", "--unlabelled"], ["--verify"], ["--index"]])
def test_rejects_an_empty_folder_name(
    options: list[str],
    shards: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(shards)
    arguments = [str(tmp_path / "out") if word == "OUT" else word for word in options]
    assert main(["shard", "", *arguments]) == 2
    assert "folder must be a data set, a folder or a URL, got ''" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_rejects_an_empty_output_folder_name(shards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["shard", str(shards), ""]) == 2
    assert "OUT must be a path, got ''" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--verify", "--classes", "names"), "--classes does nothing when shards are verified"),
        (("--verify", "--unlabelled"), "--unlabelled does nothing when shards are verified"),
        (("--verify", "--no-check-images"), "--no-check-images does nothing when shards are verified"),
        (("--index", "--unlabelled"), "--unlabelled does nothing when shards are listed"),
        (("--index", "--processes", "1"), "--processes does nothing when shards are listed"),
        (("--index", "--images-per-shard", "5"), "--images-per-shard does nothing when shards are listed"),
        (("OUT", "--classes", "names"), "--classes does nothing when shards are written"),
        (("OUT", "--unlabelled", "--data-root", "x"), "--data-root does nothing when images without classes"),
        (("OUT", "--unlabelled", "--validation-share", "0.5"), "--validation-share does nothing when images without"),
        (("--unlabelled",), "name a folder for the shards"),
        (("--classes", "names"), "name a folder for the shards"),
        (("--index", "--verify"), "name a folder for the shards after the data set, or one of --verify and --index"),
        (("--index", "--classes", "names"), "expected class names in names, but it cannot be read"),
    ],
)
def test_rejects_an_option_without_effect(
    arguments: tuple[str, ...], sentence: str, two_classes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert main(["shard", str(two_classes), *(out if word == "OUT" else word for word in arguments)]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert sentence in error
    assert not (tmp_path / "out").exists()
