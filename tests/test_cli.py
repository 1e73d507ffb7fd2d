"""The command line: output, exit codes, and no traceback for any user error."""

import json
import os
import shutil

import pytest
import torch

from commands import fail, succeed
from lambdanets.cli import main
from lambdanets.cli.train import parse_train_command
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


def test_model_options_are_merged_into_those_of_the_recipe(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from lambdanets.tasks.recipes import ClassificationRecipe\n"
        "recipe = ClassificationRecipe(model='lambda_resnet20_small', model_options={'scope': 7, 'heads': 2})"
    )
    *_, recipe = parse_train_command([str(file), "--model-options", "scope", "5", "content", "false"])
    assert recipe.model_options == {"scope": 5, "heads": 2, "content": False}


@pytest.mark.parametrize("devices", [["--devices=2"], ["--devices", "2"]])
def test_devices_launches_the_command_with_a_run_folder(devices, tmp_path, monkeypatch):
    launched = []
    monkeypatch.setattr(distributed, "launch", lambda *arguments: launched.append(arguments) or 0)
    assert main(["train", "digits", *devices, "--run", str(tmp_path / "run")]) == 0
    assert launched == [(2, ["train", "digits", *devices, "--run", str(tmp_path / "run")])]
    assert main(["train", "digits", *devices]) == 0
    assert " ".join(launched[1][1]).startswith(f"train digits {' '.join(devices)} --run runs/digits-")


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


ERRORS = [
    ("predict MODEL", "images must be given, got none"),
    ("predict nowhere IMAGE", "nowhere must be a run folder"),
    ("predict MODEL TEXT --out new", "0 of 1 image could be read"),
    ("predict classification IMAGE --out nowhere/x.jsonl", "nowhere/x.jsonl: No such file or directory"),
    ("predict classification IMAGE --score 0 --no-figures", "model has no option --score or --figures"),
    ("predict classification IMAGE --out x.csv", "per image, got x.csv; choose x.jsonl"),
    ("predict detection IMAGE --out objects.csv", "objects.csv must be a folder, got the name of a file"),
    ("evaluate MODEL --out scores.json", "scores.json must be a folder, got the name of a file"),
    ("evaluate MODEL --device gpu", "device must be cpu"),
    ("evaluate classification --images x", "has no option --images"),
    ("evaluate detection --data a.json", "data and images must be given together"),
    ("evaluate detection --data PHOTOS --images PHOTOS", "must be a JSON file of COCO instances, got a folder"),
    ("evaluate detection --data OTHER/val.json --images OTHER/val", "must have the 2 categories"),
    ("evaluate segmentation --data a.json --images a", "a.json: No such file"),
    ("report classification", "must be a detection run, got a classification run"),
    ("explain classification IMAGE --at 0 0 --out new", "at must be in the center crop that the model sees"),
    ("benchmark layer --candidates tim", "got 'tim'; the nearest is timm"),
    ("benchmark layer --shapes 28x28", "must match pattern"),
    ("benchmark layer --scopes 23 4", "lambdanets cannot be built: scope must be"),
    ("benchmark model --scope 4", "lambdanets cannot be built: scope must be"),
    ("benchmark tables --tables 18 --passes inference", "must leave something to measure, got nothing"),
    ("compare mixer", "got 'mixer'; the nearest is mixers"),
    ("compare scope --model-options scope 5", "model_options must not have scope, which the variants set"),
    ("compare scope --seed 5", "--seed must not be given, got 5"),
    ("train --lerning-rate 1", "no option --lerning-rate; the nearest is --learning-rate"),
    ("train --epochs 3 cifar10", "has no argument 'cifar10'; RECIPE must come before the options"),
    ("train --mean 0.1 0.2", "mean must be one number or one for each of 1 channels"),
    ("train --model-options scope", "--model-options must be pairs of a name and a value, got 'scope'"),
    ("train --model-options small_image true scope 7", "has no option 'small_image'; the nearest is small_images"),
    ("train image_folder", "data must be given"),
    ("train scatered", "got 'scatered'; the nearest is scattered_digits"),
    ("train scattered_digits --proposal 7", "no option --proposal; the nearest is --proposals"),
    ("train scattered_digits --model vit_tiny_patch16_224 --levels 1 2", "padding cannot be hidden in"),
    ("train digit_masks --model resnet18", "choose a U-Net such as lambda_unet_small"),
    ("train digit_masks --data a.json", "images, validation_data must be given; add --images PATH"),
    ("train --data ONE", "a recipe must be named before --data"),
    ("train digits --data EMPTY", "got no images"),
    ("train digits --data ONE", "only 'dark'"),
    ("train --run LONG", "name too long"),
    ("train scattered_digits --quicktest --model missing --run run", "no model named 'missing'"),
    ("adopt resnet18 --no-pretrained --out new", "must contain lambda layers"),
    ("adopt . --out new", "there is no model named '.'"),
    ("train --resume classification --epochs 60 --dropout 0.7", "epochs must be 3, got 60, and dropout must be 0.1"),
    ("train --resume classification --run other", "remove the recipe and --run"),
    ("train digits --resume classification", "remove the recipe"),
    ("train --resume PHOTOS --epochs 3", "must be a run folder"),
    ("train --resume=~/nothing", "lambdanets: /"),
    ("train scattered_digits --run classification", "task must be 'classification', got 'detection'"),
]


@pytest.mark.parametrize(("words", "message"), ERRORS, ids=[words for words, _ in ERRORS])
def test_errors_of_a_user_are_one_line_and_leave_no_files(
    words, message, runs, two_classes, trained_detector, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (two_classes / "text.png").write_text("no image")
    for name in ("ONE/dark", "EMPTY"):
        (tmp_path / name).mkdir(parents=True)
    shutil.copy(two_classes / "dark/00.png", tmp_path / "ONE/dark")
    before = sorted(tmp_path.rglob("*"))
    paths = runs | {"PHOTOS": two_classes, "IMAGE": two_classes / "dark/00.png", "TEXT": two_classes / "text.png"}
    paths |= {"OTHER": trained_detector / "digits", "LONG": "x" * 300}
    for model in runs if "MODEL" in words else [""]:
        command = words.replace("MODEL", model)
        for name, path in paths.items():
            command = command.replace(f" {name}", f" {path}")
        assert message in fail(capsys, *command.split(" "))
        assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("recipe", ["scattered_digits", "digit_masks"])
def test_quicktest_prints_the_scores_and_the_same_when_resumed(recipe, few_digits, tmp_path, capsys):
    succeed("train", recipe, "--quicktest", "--run", tmp_path / "run")
    output = capsys.readouterr().out.splitlines()
    summary = json.loads((tmp_path / "run/result.json").read_text())["summary"]
    assert output[-len(summary) :] == summary
    assert f"predictions: {tmp_path / 'run/predictions.png'}" in output
    for command in (["--resume", tmp_path / "run"], [recipe, "--quicktest", "--run", tmp_path / "run"]):
        succeed("train", *command)
        assert capsys.readouterr().out.splitlines()[-len(summary) :] == summary
