"""The command line: output, exit codes, and no traceback for any user error."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

import lambdanets as ln
from convergence import train_until
from lambdanets.cli import main
from lambdanets.cli.train import parse_train_command
from lambdanets.inference import classifier as classifiers
from lambdanets.inference import loading
from lambdanets.recipes import find_recipe
from lambdanets.recipes.digits import recipe as DIGITS
from lambdanets.training import launching, micro_batches, run
from lambdanets.work import locked
from training.runs import SEED


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """The folder of a finished run on two classes, dark and light."""
    folder = tmp_path_factory.mktemp("trained")
    random = np.random.default_rng(0)
    for name, brightness in (("dark", 60), ("light", 190)):
        (folder / "images" / name).mkdir(parents=True)
        for i in range(10):
            pixels = np.clip(random.normal(brightness, 20, (9, 9)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / "images" / name / f"{i}.png")
    recipe = replace(DIGITS, data=str(folder / "images"), image_size=8, batch_size=6, learning_rate=0.03, seed=SEED)

    def train(factor):
        shutil.rmtree(folder / "run", ignore_errors=True)
        return run.start(replace(recipe, epochs=15 * factor), folder / "run")

    def classifies_all(result):
        classifier, paths = ln.load(folder / "run", device="cpu"), sorted((folder / "images").rglob("*.png"))
        predicted = [prediction.class_name for prediction in classifier.predict(paths)]
        correct = sum(name == path.parent.name for name, path in zip(predicted, paths, strict=True))
        bright = classifier.predict(np.full((9, 12), 200, np.uint8))[0].class_name == "light"
        return result["top1"] == 1.0 and correct > 15 and bright

    train_until(classifies_all, train)
    return folder


def run_failing(capsys, *arguments):
    """Run a command that must exit with code 2, and return the last line of stderr."""
    assert main([str(argument) for argument in arguments]) == 2
    output = capsys.readouterr().err.strip().splitlines()
    assert "Traceback" not in "".join(output)
    assert output[-1].startswith("lambdanets: ")
    return output[-1]


def test_train_prints_classes_and_left_out_files_first_and_top1_last(two_classes, tmp_path, capsys):
    (two_classes / "dark/scan.HEIC").touch()
    fields = ["--data", two_classes, "--channels", 3, "--image-size", 8, "--epochs", 2, "--batch-size", 6]
    assert main(["train", *map(str, fields), "--run", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out.strip().splitlines()
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert out[:2] == ["classes: 2 (dark, light)", "left out: 1 .heic"]
    assert out[-1] == f"top-1 {result['top1']:.4f}"
    assert str(tmp_path / "run/predictions.png") in "\n".join(out)


def test_evaluate_reproduces_the_top1_of_the_run(trained, capsys):
    assert main(["evaluate", str(trained / "run")]) == 0
    result = json.loads((trained / "run/result.json").read_text())
    assert capsys.readouterr().out.strip().endswith(f"top-1 {result['top1']:.4f}")


def test_predict_prints_a_table_and_writes_json_lines(trained, tmp_path, capsys):
    out = tmp_path / "predictions.jsonl"
    images = [str(trained / "images/dark"), str(trained / "images/light/*.png")]
    assert main(["predict", str(trained / "run"), *images, "--out", str(out), "--top", "2"]) == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(lines) == 20
    correct = sum(line["top"][0]["class"] in line["path"] for line in lines)
    assert correct > 15
    assert all(abs(sum(entry["probability"] for entry in line["top"]) - 1) < 1e-4 for line in lines)
    assert capsys.readouterr().out.count("dark") >= 20


def test_predict_skips_and_lists_unreadable_images(trained, tmp_path, capsys):
    (tmp_path / "text.png").write_text("no image")
    good = str(trained / "images/dark/0.png")
    arguments = ["predict", str(trained / "run"), str(tmp_path / "text.png"), good, "--out", str(tmp_path / "o.jsonl")]
    assert main(arguments) == 0
    assert "skipped 1 unreadable images" in capsys.readouterr().err
    assert len((tmp_path / "o.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda signum: signum.name)
def test_predict_keeps_predictions_on_a_signal_and_resumes(signum, trained, tmp_path, monkeypatch, capsys):
    predict = classifiers.predict_files

    def with_signal(*arguments, **reading):
        for index, prediction in enumerate(predict(*arguments, **reading)):
            if index == 7:
                os.kill(os.getpid(), signum)
            yield prediction

    command = ["predict", str(trained / "run"), str(trained / "images"), "--out"]
    assert main([*command, str(tmp_path / "uninterrupted.jsonl")]) == 0
    out = tmp_path / "out.jsonl"
    with monkeypatch.context() as patch:
        patch.setattr(classifiers, "predict_files", with_signal)
        assert main([*command, str(out)]) == 130
    message = f"stopped after 7 of 20 images, saved in {out}.partial; run the same command to resume"
    assert capsys.readouterr().err.strip() == message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl.partial", "uninterrupted.jsonl"]
    assert "was started with options [3], not [1]; remove it" in run_failing(capsys, *command, out, "--top", 1)
    assert "was started with other images" in run_failing(capsys, *command[:2], trained / "images/dark", "--out", out)
    assert main([*command, str(out)]) == 0
    assert "resuming: 7 of 20 images are done" in capsys.readouterr().err
    assert out.read_bytes() == (tmp_path / "uninterrupted.jsonl").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "uninterrupted.jsonl"]


def test_predict_rejects_an_output_locked_by_another_process(trained, tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    with locked(tmp_path / ".out.jsonl.lock", out):
        error = run_failing(capsys, "predict", trained / "run", trained / "images", "--out", out)
    assert "out.jsonl is in use by process" in error


def test_predict_works_with_closed_standard_output_and_error(trained, tmp_path, monkeypatch):
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    assert main(["predict", str(trained / "run"), str(trained / "images"), "--out", str(tmp_path / "out.jsonl")]) == 0
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 20


def test_predict_does_not_overwrite_its_output(trained, tmp_path, capsys):
    out = tmp_path / "precious.jsonl"
    out.write_text("kept")
    assert "exists; choose another file" in run_failing(
        capsys, "predict", trained / "run", trained / "images/dark", "--out", out
    )
    assert out.read_text() == "kept"


def test_predict_does_not_overwrite_a_file_written_while_it_loads(trained, tmp_path, capsys, monkeypatch):
    def slow(*arguments):
        (tmp_path / "out.jsonl").write_text("from another process")
        return load_one_of(*arguments)

    load_one_of = loading.load_one_of
    monkeypatch.setattr(loading, "load_one_of", slow)
    command = ("predict", trained / "run", trained / "images/dark", "--out", tmp_path / "out.jsonl")
    assert "exists; choose another file" in run_failing(capsys, *command)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("out.jsonl", "from another process")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "IMAGES must be at least one file"),
        (["nowhere.png"], "nowhere.png"),
        (["text.png"], "none of the 1 images could be read"),
        (["IMAGES", "--out", ""], "--out must have a value, got ''"),
        (["IMAGES", "--out", "a\0b"], "must not contain a null byte, got 'a\\x00b'"),
        (["IMAGES", "--out", "nowhere/x.jsonl"], "nowhere/x.jsonl: No such file or directory"),
        (["IMAGES", "--top", "0"], "--top must be greater than 0, got '0'"),
    ],
)
def test_predict_rejects_invalid_arguments_in_one_line(arguments, message, trained, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.png").write_text("no image")
    words = [trained / "images/dark" if word == "IMAGES" else word for word in arguments]
    assert message in run_failing(capsys, "predict", trained / "run", *words)
    assert [path.name for path in tmp_path.iterdir()] == ["text.png"]


def test_model_options_are_merged_into_those_of_the_recipe(two_classes, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from lambdanets.tasks.classification.recipe import ClassificationRecipe\n"
        "recipe = ClassificationRecipe(model='lambda_resnet20_small', image_size=8, epochs=1, batch_size=8, "
        "model_options={'scope': 7, 'heads': 2})"
    )
    options = ["--data", str(two_classes), "--model-options", "scope", "5", "content", "False"]
    assert main(["train", str(file), *options, "--run", str(tmp_path / "run")]) == 0
    recipe = json.loads((tmp_path / "run/recipe.json").read_text())
    assert recipe["model_options"] == {"scope": 5, "heads": 2, "content": False}
    assert loading.load(tmp_path / "run").model.layer4[0].conv2.key_projection is None


INVALID = """
--lerning-rate 1 | no option --lerning-rate; the nearest is --learning-rate
--epochs many | --epochs must be a valid integer
--epochs 0 | --epochs must be greater than or equal to 1, got '0'
--epochs 99999999999999999999 | --epochs must be less than or equal to 1000000
--epochs | --epochs: expected one argument
--epochs 3 cifar10 | has no argument 'cifar10'
--optimizer lion | --optimizer must be 'sgd', 'rmsprop' or 'adamw', got 'lion'
--mean 0.1 0.2 | mean must be one number or one for each of 1 channels
--mean nan | --mean[0] must be a finite number, got 'nan'
--clip-gradient -1 | --clip-gradient must be greater than 0, got '-1'
--channels 2 | --channels must be 1 or 3, got '2'
--scale 0.5 | --scale: expected 2 arguments
--model-options scope | --model-options must be pairs of a name and a value, got 'scope'
--model-options scopes 7 | takes no argument 'scopes'
--model-options scope 4 | scope
--model-options heads 7 | heads
--model-options num_classes 5 | num_classes
--model-options content 5 | content
--model lamda_resnet50 | no model named 'lamda_resnet50'; the nearest are lambda_resnet50
--rand-augment rand-m999-n2 | rand_augment must have a magnitude m of at most 10, got 'rand-m999-n2'
--rand-augment '' | --rand-augment must have a value, got ''
--run '' | --run must have a value, got ''
--resume= | --resume must have a value, got ''
image_folder | data must be given
digit | recipe must be one of cifar10,
--data EMPTY | images
--data ONE | only 'dark'
--run LONG | name too long
--run FILE/run | Not a directory
""".strip().splitlines()


@pytest.mark.parametrize("line", INVALID)
def test_train_rejects_invalid_options_in_one_line(line, trained, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("EMPTY", "ONE"):
        (tmp_path / folder).mkdir()
    (tmp_path / "ONE/dark").symlink_to(trained / "images/dark")
    (tmp_path / "FILE").touch()
    arguments, _, message = line.replace("LONG", "x" * 300, 1).partition(" | ")
    assert message in run_failing(capsys, "train", *shlex.split(arguments))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["EMPTY", "FILE", "ONE"]


@pytest.mark.parametrize("devices", [["--devices=2"], ["--devices", "2"]])
def test_devices_launches_the_command_with_a_run_folder(devices, tmp_path, monkeypatch):
    launched = []
    monkeypatch.setattr(launching, "launch", lambda *arguments: launched.append(arguments) or 0)
    assert main(["train", "digits", *devices, "--run", str(tmp_path / "run")]) == 0
    assert launched == [(2, ["train", "digits", *devices, "--run", str(tmp_path / "run")])]
    assert main(["train", "digits", *devices]) == 0
    assert launched[1][1][:-1] == ["train", "digits", *devices, "--run"]
    assert launched[1][1][-1].startswith("runs/digits-")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("detect train", "scattered_digits"),
        ("detect train nuclei", "nuclei"),
        ("segment train nuclei_convolution", "nuclei_masks_convolution"),
        ("segment train --epochs 3", "digit_masks"),
    ],
)
def test_earlier_names_of_train_and_its_recipes_work(old, new, tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(run, "start", lambda recipe, folder: started.append(recipe) or {})
    monkeypatch.chdir(tmp_path)
    assert main(old.split()) == 0
    assert started == [replace(find_recipe(new), epochs=started[0].epochs)]


def test_predict_escapes_control_characters_of_file_names(trained, tmp_path, capsys):
    (tmp_path / "odd").mkdir()
    for name in ("esc\x1b[31mred.png", "new\nline.png"):
        (tmp_path / "odd" / name).write_bytes((trained / "images/dark/0.png").read_bytes())
    (tmp_path / "odd" / "bad\x1b[1m.png").write_text("no image")
    assert main(["predict", str(trained / "run"), str(tmp_path / "odd"), "--out", str(tmp_path / "o.jsonl")]) == 0
    output = capsys.readouterr()
    assert "\x1b" not in output.out + output.err
    assert "esc\\x1b[31mred.png" in output.out
    assert "new\\nline.png" in output.out
    assert "bad\\x1b[1m.png" in output.err


def test_train_rejects_a_model_that_exceeds_memory(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(micro_batches, "free_memory", lambda device: 2**20)
    error = run_failing(capsys, "train", "--run", tmp_path / "run")
    assert "GiB" in error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epochs", "9"], "--resume uses the run's own recipe, which has"),
        (["--epochs", DIGITS.epochs], "--resume uses the run's own recipe, which has"),
        (["--seed", "7"], "--resume uses the run's own recipe, which has"),
        (["--run", "other"], "remove the recipe and --run"),
    ],
)
def test_resume_rejects_options_that_differ_from_the_run(arguments, message, trained, capsys):
    assert message in run_failing(capsys, "train", "--resume", trained / "run", *arguments)


def test_resume_rejects_recipes_and_folders_that_are_not_runs(trained, capsys):
    assert "remove the recipe" in run_failing(capsys, "train", "digits", "--resume", trained / "run")
    assert "must be a run folder" in run_failing(capsys, "train", "--resume", trained / "images", "--epochs", "3")


def test_resuming_a_finished_run_prints_its_result(trained, capsys):
    same = ["--batch-size", "6", "--workers", "0", "--data", os.path.relpath(trained / "images")]
    assert main(["train", "--resume", str(trained / "run"), *same]) == 0
    assert capsys.readouterr().out.strip().splitlines()[-1].startswith("top-1 ")


def test_commands_for_a_model_of_another_task_name_the_one_that_works(trained_segmenter, trained, tmp_path, capsys):
    images = trained / "images"
    for command, other in (("predict", "segment predict"), ("detect predict", "segment predict")):
        words = [*command.split(), trained_segmenter / "run", images, "--out", tmp_path / "out"]
        assert run_failing(capsys, *words).endswith(f"got a segmentation model; use lambdanets {other}")
    assert "use lambdanets evaluate" in run_failing(capsys, "segment", "evaluate", trained / "run")
    assert "must be a detection run, got a segm" in run_failing(capsys, "detect", "report", trained_segmenter / "run")


@pytest.mark.slow
def test_python_m_lambdanets_runs_the_command_line():
    command = [sys.executable, "-m", "lambdanets", "--version"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.startswith("lambdanets ")


@pytest.mark.parametrize(
    ("model", "options", "other", "kept"),
    [
        ("vit_tiny_patch16_224", "{'img_size': 96}", "vit_small_patch16_224", {"img_size": 96}),
        ("resnet50_lambda", "{'pattern': 'CCLL'}", "resnet50_lambda.untrained", {"pattern": "CCLL"}),
        ("resnet50_lambda", "{'pattern': 'CCLL'}", "resnet50", {}),
        ("lambda_resnet50", "{'scope': 7, 'layers': 3}", "lambda_resnet101", {"scope": 7, "layers": 3}),
    ],
)
def test_recipe_options_are_kept_for_another_model_that_has_them(model, options, other, kept, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from lambdanets.tasks.classification.recipe import ClassificationRecipe\n"
        f"recipe = ClassificationRecipe(model={model!r}, model_options={options})\n"
    )
    command = parse_train_command([str(file), "--model", other])
    assert command.recipe.model_options == kept
