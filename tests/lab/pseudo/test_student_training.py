"""Training a student on labeled and pseudo-labeled images."""

import json
from dataclasses import replace

import pytest

from commands import succeed
from lambdanets.data.datasets import open_splits
from lambdanets.errors import InputError
from lambdanets.recipes import digits
from lambdanets.records import write_json
from lambdanets.training import run
from lambdanets.training.recipe import read_recipe
from lambdanets_lab.pseudo.recipe import StudentRecipe
from lambdanets_lab.shards import write_shards
from training.runs import assert_same_result, interrupted_run, resume
from training.teachers import write_selection

DIGITS = tuple("0123456789")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder with `shards` (30 training digits and some validation digits) and `student/selection`."""
    folder = tmp_path_factory.mktemp("digits")
    splits = open_splits("digits", validation_share=0.01, training_images=30)
    write_shards(splits, folder / "shards", images_per_shard=5)
    write_selection(folder / "shards", folder / "student", classes=DIGITS, top=3, per_class=12)
    return folder


@pytest.fixture
def recipe(data):
    """A recipe with 5 steps per epoch, each of 6 labeled and 9 pseudo-labeled images."""
    values = {
        "data": str(data / "shards"),
        "pseudo_images": str(data / "shards"),
        "pseudo_labels": str(data / "student/selection"),
        "pseudo_ratio": 1.5,
        "image_size": 8,
        "epochs": 2,
        "batch_size": 6,
        "warmup_epochs": 0.5,
        "flip": 0.5,
        "drop_path": 0.2,
        "dropout": 0.1,
        "checkpoint_every": 2,
    }
    return StudentRecipe(**vars(digits.recipe) | values)


def test_interrupted_student_training_resumes_bit_identically(recipe, tmp_path, monkeypatch):
    recipe = replace(recipe, pseudo_targets="hard", micro_batch=5, ema_decay=0.9)
    run.start(recipe, tmp_path / "uninterrupted")
    for step in (5, 8):
        interrupted_run(recipe, tmp_path / "interrupted", monkeypatch, step)
    resume(tmp_path / "interrupted")
    assert_same_result(tmp_path / "uninterrupted", tmp_path / "interrupted")


def test_rejects_resuming_a_student_with_another_selection(recipe, data, tmp_path, monkeypatch):
    folder = interrupted_run(recipe, tmp_path / "run", monkeypatch, step=2)
    other = write_selection(data / "shards", tmp_path / "other", classes=DIGITS, top=3, per_class=11)
    recipe = replace(read_recipe(folder / "recipe.json"), pseudo_labels=str(other))
    write_json(folder / "recipe.json", recipe.fields())
    with pytest.raises(InputError, match="the data has changed since the run started"):
        resume(folder)


def test_student_training_with_commands_from_shards_to_evaluation(two_classes, tmp_path, capsys):
    def run_command(*arguments):
        succeed(*arguments)
        return capsys.readouterr().out

    options = ("--channels", 3, "--image-size", 8, "--epochs", 1, "--batch-size", 8)
    shards, out = tmp_path / "shards", tmp_path / "labels"
    run_command("shard", two_classes, shards, "--images-per-shard", 5, "--threads", 1)
    run_command("train", "digits", "--data", shards, *options, "--run", tmp_path / "teacher")
    output = run_command("pseudo-label", tmp_path / "teacher", shards, out, "--top", 2, "--device", "cpu")
    assert "16 images in 4 shards labeled" in output
    assert f"lambdanets pseudo-label select {out} SELECTION" in output
    run_command("pseudo-label", "select", out, tmp_path / "selection", "--confidence", 0, "--per-class", 4)
    pseudo = ("--pseudo-labels", tmp_path / "selection", "--pseudo-images", shards, "--pseudo-ratio", 0.5)
    output = run_command("train", "digits", "--data", shards, *options, *pseudo, "--run", tmp_path / "student")
    result = json.loads((tmp_path / "student/result.json").read_text())
    assert output.splitlines()[-1] == f"top-1 {result['top1']:.4f}"
    run_command("evaluate", tmp_path / "student")
