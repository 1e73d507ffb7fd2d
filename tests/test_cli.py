"""The command line: output, exit codes, and no traceback for any user error."""

import json
import os
import shlex

import pytest
import torch

from commands import fail, succeed
from lambdanets.cli import main
from lambdanets.inference import loading
from lambdanets.training import distributed, run


def test_train_prints_classes_and_left_out_files_first_and_top1_last(two_classes, tmp_path, capsys):
    (two_classes / "dark/scan.HEIC").touch()
    fields = ["--data", two_classes, "--channels", 3, "--image-size", 8, "--epochs", 2, "--batch-size", 6]
    assert main(["train", "digits", *map(str, fields), "--run", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out.strip().splitlines()
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert out[:2] == ["classes: 2 (dark, light)", "left out: 1 .heic"]
    assert out[-1] == f"top-1 {result['top1']:.4f}"
    assert str(tmp_path / "run/predictions.png") in "\n".join(out)


def test_model_options_are_merged_into_those_of_the_recipe(two_classes, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from lambdanets.tasks.recipes import ClassificationRecipe\n"
        "recipe = ClassificationRecipe(model='lambda_resnet20_small', image_size=8, epochs=1, batch_size=8, "
        "model_options={'scope': 7, 'heads': 2})"
    )
    options = ["--data", str(two_classes), "--model-options", "scope", "5", "content", "false"]
    assert main(["train", str(file), *options, "--run", str(tmp_path / "run")]) == 0
    recipe = json.loads((tmp_path / "run/recipe.json").read_text())
    assert recipe["model_options"] == {"scope": 5, "heads": 2, "content": False}
    assert loading.load(tmp_path / "run").model.layer4[0].conv2.key_projection is None


INVALID = """
--lerning-rate 1 | no option --lerning-rate; the nearest is --learning-rate
--epochs 3 cifar10 | has no argument 'cifar10'; RECIPE must come before the options
--mean 0.1 0.2 | mean must be one number or one for each of 1 channels
--model-options scope | --model-options must be pairs of a name and a value, got 'scope'
--model-options small_image true scope 7 | has no option 'small_image'; the nearest is small_images
image_folder | data must be given
scatered | got 'scatered'; the nearest is scattered_digits
scattered_digits --proposal 7 | no option --proposal; the nearest is --proposals
scattered_digits --model vit_tiny_patch16_224 --levels 1 2 | padding cannot be hidden in network.model.blocks
digit_masks --model resnet18 | choose a U-Net such as lambda_unet_small
digit_masks --data a.json | images, validation_data must be given; add --images PATH --validation-data PATH
--data ONE | a recipe must be named before --data
digits --data EMPTY | images
digits --data ONE | only 'dark'
--run LONG | name too long
""".strip().splitlines()


@pytest.mark.parametrize("line", INVALID)
def test_train_rejects_invalid_options_in_one_line(line, quick_run, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("EMPTY", "ONE"):
        (tmp_path / folder).mkdir()
    (tmp_path / "ONE/dark").symlink_to(quick_run.parent / "images/dark")
    arguments, _, message = line.replace("LONG", "x" * 300, 1).partition(" | ")
    assert message in fail(capsys, "train", *shlex.split(arguments))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["EMPTY", "ONE"]


@pytest.mark.parametrize("devices", [["--devices=2"], ["--devices", "2"]])
def test_devices_launches_the_command_with_a_run_folder(devices, tmp_path, monkeypatch):
    launched = []
    monkeypatch.setattr(distributed, "launch", lambda *arguments: launched.append(arguments) or 0)
    assert main(["train", "digits", *devices, "--run", str(tmp_path / "run")]) == 0
    assert launched == [(2, ["train", "digits", *devices, "--run", str(tmp_path / "run")])]
    assert main(["train", "digits", *devices]) == 0
    assert launched[1][1][:-1] == ["train", "digits", *devices, "--run"]
    assert launched[1][1][-1].startswith("runs/digits-")


def test_devices_share_the_cores_that_this_process_may_use(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 128)  # of the machine
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(distributed.torchrun, "run", lambda _: None)
    assert distributed.launch(2, ["train"]) == 0
    assert os.environ.pop("OMP_NUM_THREADS") == "4"


def test_an_interrupted_run_is_resumed_on_the_same_number_of_devices(tmp_path, monkeypatch, capsys):
    def interrupt(recipe, folder):
        folder.mkdir()
        (folder / "recipe.json").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(distributed, "is_torchelastic_launched", lambda: True)
    monkeypatch.setattr(distributed, "get_world", distributed.World)
    monkeypatch.setattr(run, "start", interrupt)
    assert main(["train", "digits", "--devices", "2", "--run", str(tmp_path / "run")]) == 130
    assert f"train --resume {tmp_path / 'run'} --devices 2\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--resume RUN --epochs 60 --dropout 0.7", "epochs must be 3, got 60, and dropout must be 0.1, got 0.7, since"),
        ("--resume RUN --run other", "remove the recipe and --run"),
        ("digits --resume RUN", "remove the recipe"),
        ("--resume FOLDER --epochs 3", "must be a run folder"),
        ("scattered_digits --run RUN", "task must be 'classification', got 'detection'"),
    ],
)
def test_rejects_resuming_with_other_options_and_folders(arguments, message, quick_run, two_classes, capsys):
    arguments = arguments.replace("RUN", str(quick_run)).replace("FOLDER", str(two_classes))
    assert message in fail(capsys, "train", *arguments.split())


def test_failed_quicktest_leaves_no_folder(tmp_path, capsys):
    fail(capsys, "train", "scattered_digits", "--quicktest", "--model", "missing", "--run", tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("recipe", ["scattered_digits", "digit_masks"])
def test_quicktest_prints_the_scores_and_the_same_when_resumed(recipe, tmp_path, capsys):
    succeed("train", recipe, "--quicktest", "--run", tmp_path / "run")
    output = capsys.readouterr().out.splitlines()
    summary = json.loads((tmp_path / "run/result.json").read_text())["summary"]
    assert output[-len(summary) :] == summary
    assert f"predictions: {tmp_path / 'run/predictions.png'}" in output
    for command in (["--resume", tmp_path / "run"], [recipe, "--quicktest", "--run", tmp_path / "run"]):
        succeed("train", *command)
        assert capsys.readouterr().out.splitlines()[-len(summary) :] == summary
