"""`lambdanets train --plan`: steps, memory, time and reading of a recipe."""

import re

import pytest

from lambdanets.cli import main
from lambdanets.data import labeled_images
from lambdanets.data.images import UnreadableImage
from noise_images import write_two_classes

QUICK = ["--model", "lambda_resnet20_small", "--model-options", "scope", "3", "--image-size", "16", "--plan"]


def plan(capsys, *arguments):
    assert main(["train", *arguments, *QUICK]) == 0
    return dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())


def test_plan_of_images_in_memory_reads_nothing(capsys):
    lines = plan(capsys, "digits", "--devices", "2", "--epochs", "3", "--batch-size", "100")
    assert lines["data"].startswith("1,437 images of 10 classes, in memory")
    assert lines["steps"].startswith("15 per epoch, 45 in 3 epochs; 100 images per step")
    assert lines["reading"].startswith("0 MB/s for all devices")
    assert "on 2 devices like this one" in lines["time"]


def test_plan_estimates_file_sizes_and_skips_damaged_images(tmp_path, monkeypatch, capsys):
    def read_every_other(path):
        numbers.append(len(numbers))
        if numbers[-1] % 2:
            raise UnreadableImage(path, "damaged")
        return read_file(path)

    numbers, read_file = [], labeled_images.read_file
    monkeypatch.setattr(labeled_images, "read_file", read_every_other)
    monkeypatch.chdir(tmp_path)
    folder = write_two_classes(tmp_path / "images")
    lines = plan(capsys, "image_folder", "--data", str(folder))
    assert re.search(r"of 2 classes, [\d.]+ kB each", lines["data"])
    assert (lines["classes:"], lines["left"]) == ("2 (dark, light)", "out: no files")
    assert len(numbers) > 2
    assert not list(tmp_path.glob("run*"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--devices", "0"], "--devices must be greater than 0"),
        (["--quicktest"], "--plan trains nothing; remove --resume, --run and --quicktest"),
    ],
)
def test_plan_rejects_invalid_options(arguments, message, capsys):
    assert main(["train", "digits", "--plan", *arguments]) == 2
    assert message in capsys.readouterr().err
