"""Output folders of commands inside a data set, with their figures of images, never become data."""

import re
import shutil
from pathlib import Path

import pytest

from lambdanets.cli import main
from lambdanets.data.datasets import open_splits
from lambdanets.data.image_search import find_images


def check_that_output_is_not_data(photos: Path, *commands: str) -> None:
    """Run commands, in which OUT is a new folder in PHOTOS; the images and classes of PHOTOS must not change."""
    images, classes = find_images([str(photos)])[0], open_splits(str(photos)).train.classes
    for number, command in enumerate(commands):
        out = photos / f"out{number}"
        assert main([word.replace("PHOTOS", str(photos)).replace("OUT", str(out)) for word in command.split()]) == 0
        assert list(out.rglob("*.png"))
        for inputs in ([str(photos)], sorted(map(str, photos.iterdir()))):
            assert sorted(find_images(inputs)[0]) == images
        splits = open_splits(str(photos))
        assert splits.train.classes == classes
        assert f"output folder '{out.name}' of a command" in splits.left_out


def copy_photos(source: Path, folder: Path) -> Path:
    for number, path in enumerate(sorted(source.glob("*.png"))[:4]):
        (folder / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder / "ab"[number % 2])
    return folder


@pytest.mark.figures
def test_runs_and_output_of_the_classification_commands_are_not_data(two_classes, quick_run):
    shutil.copytree(quick_run, two_classes / "run")
    check_that_output_is_not_data(
        two_classes,
        f"evaluate {two_classes}/run --out OUT --device cpu",
        f"explain {two_classes}/run {two_classes}/dark/00.png --out OUT --device cpu",
    )


@pytest.mark.parametrize("task", ["detector", "segmenter"])
def test_output_of_predict_and_evaluate_is_not_data(task, trained_detector, trained_segmenter, tmp_path, capsys):
    folder = trained_detector if task == "detector" else trained_segmenter
    check_that_output_is_not_data(
        copy_photos(folder / "digits/train", tmp_path / "photos"),
        f"predict {folder}/run PHOTOS --out OUT --device cpu",
        f"predict {folder}/run PHOTOS --out OUT --device cpu --no-figures",
        f"evaluate {folder}/run --out OUT --device cpu",
    )
    assert re.search(r"left out: 1 output folder 'out0' of a command\n", capsys.readouterr().err)
