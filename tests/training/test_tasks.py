"""What training does for every task: files, metrics, exact resume, moved data, unreadable images, errors."""

import csv
import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lambdanets.cli import main
from lambdanets.errors import InputError
from lambdanets.files import is_output
from lambdanets.inference.loading import load
from lambdanets.tasks.detection import LOSS_NAMES
from lambdanets.training import run
from lambdanets.training.recipe import read_recipe
from training.detection.constructed_detector import assert_nontrivial_metrics
from training.runs import assert_same_result, initialized_model, interrupted_run, load_weights

LOSSES = {
    "classification": ["loss"],
    "detection": ["loss", *LOSS_NAMES.values()],
    "segmentation": ["loss", "cross_entropy", "dice_loss"],
}
SCORES = {
    "classification": lambda result: {"top1": result["top1"]},
    "detection": lambda result: {
        f"{kind}_{name}": result[kind][name] for kind in ("bbox", "segm") for name in ("AP", "AP50")
    },
    "segmentation": lambda result: {name: result[name] for name in ("dice", "iou", "boundary_f1")},
}


@pytest.fixture(params=LOSSES)
def task(request):
    return request.param


@pytest.fixture
def finished(task, runs):
    """The folder of a finished run of the task. Read-only."""
    return runs[task]


@pytest.fixture
def recipe(finished, tmp_path):
    """The recipe of the finished run on a copy of its data, which the test may change."""
    recipe = read_recipe(finished / "recipe.json")
    data = shutil.copytree(finished.parent / Path(recipe.data).relative_to(finished.parent).parts[0], tmp_path / "data")
    return replace(recipe, **moved(recipe, data))


def moved(recipe, folder):
    """The paths of a recipe's data in another folder."""
    root = Path(recipe.data) if recipe.task == "classification" else Path(recipe.data).parent
    paths = {name: getattr(recipe, name, None) for name in recipe.PATHS if name != "weights"}
    return {name: str(folder / Path(path).relative_to(root)) for name, path in paths.items() if path}


def test_run_writes_its_files_and_result(task, finished):
    files = {path.relative_to(finished).as_posix() for path in finished.rglob("*") if path.is_file()}
    assert files == {
        *("recipe.json", "metrics.csv", "weights.safetensors", "result.json", "curves.png", "predictions.png"),
        *("checkpoints/last.ckpt", "checkpoints/best.ckpt"),
        *(name for name in files if name.startswith("tensorboard/events")),
    }
    assert is_output(files)
    result = json.loads((finished / "result.json").read_text())
    assert {"seconds", "images_per_second", "parameters", "summary", "commit", "versions", "hardware"} <= result.keys()
    assert result["recipe"]["task"] == task
    assert result["unreadable"] == []
    assert all(0 <= score <= 1 for score in SCORES[task](result).values())


def test_metrics_have_the_losses_and_scores_of_the_task(task, finished):
    with (finished / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    scores = SCORES[task](json.loads((finished / "result.json").read_text()))
    assert list(rows[0])[:-4] == ["step", "epoch", "split", *LOSSES[task], *scores]
    epochs = read_recipe(finished / "recipe.json").epochs
    assert [row["split"] for row in rows] == ["train", "val"] * epochs
    for training, validation in zip(rows[::2], rows[1::2], strict=True):
        values = [float(training[name]) for name in LOSSES[task]]
        assert all(value > 0 for value in values)
        assert len(values) == 1 or values[0] == pytest.approx(sum(values[1:]), abs=1e-5)
        assert float(training["images_per_second"]) > 0
        assert all(0 <= float(validation[name]) <= 1 for name in scores)
    assert {name: float(rows[-1][name]) for name in scores} == pytest.approx(scores, abs=1e-6)


def iterate_tensors(content, prefix=""):
    """Yield the names and values of the tensors in nested dictionaries."""
    for key, value in content.items() if isinstance(content, dict) else ():
        if isinstance(value, torch.Tensor):
            yield f"{prefix}{key}", value
        else:
            yield from iterate_tensors(value, f"{prefix}{key}.")


def test_run_with_micro_batches_ema_and_frozen_norms_resumes_exactly(task, recipe, finished, tmp_path, monkeypatch):
    weights = Path(shutil.copy(finished / "weights.safetensors", tmp_path / "initial.safetensors"))
    identity = {"name": weights.name, "sha256": hashlib.sha256(weights.read_bytes()).hexdigest()}
    # interrupted again and again, in the middle of an epoch and after one; then the data is moved, without its weights
    steps, micro_batch = ((2, 3, 8), 3) if task == "classification" else ((1, 2), 1)
    frozen = {"freeze_batch_norm": 0.4, "batch_norm_momentum": 0.5, "learning_rate": recipe.learning_rate / 5}
    recipe = replace(recipe, weights=str(weights), micro_batch=micro_batch, ema_decay=0.9, **frozen)
    run.start(recipe, tmp_path / "uninterrupted")
    for step in steps:
        folder = interrupted_run(recipe, tmp_path / "run", monkeypatch, step)
    weights.unlink()
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    paths = moved(recipe, tmp_path / "elsewhere")
    options = [f"--{name.replace('_', '-')}={path}" for name, path in paths.items()]
    assert main(["train", "--resume", str(folder), "--workers", "1", *options]) == 0
    assert_same_result(tmp_path / "uninterrupted", folder)
    if task == "detection":
        assert_nontrivial_metrics(folder)
    assert json.loads((folder / "result.json").read_text())["initial_weights"] == identity
    assert read_recipe(folder / "recipe.json").data == paths["data"]
    # the checkpoint has the EMA, which is saved, and the weights
    final, checkpoint = load_weights(folder), torch.load(folder / "checkpoints/last.ckpt")
    name = [*final][-1]
    stored = [tensor for key, tensor in iterate_tensors(checkpoint) if key.endswith(name) and "optim" not in key]
    assert sorted(torch.equal(final[name], tensor) for tensor in stored) == [False, True]


def test_unreadable_images_are_skipped_and_listed(recipe, tmp_path):
    images = sorted((tmp_path / "data").rglob("*.png"))
    images[0].write_bytes(images[0].read_bytes()[:50])
    images[2].write_bytes(b"no image")
    result = run.start(replace(recipe, epochs=1), tmp_path / "run")
    unreadable = {Path(message.partition(": ")[0]).name for message in result["unreadable"]}
    assert unreadable == {images[0].name, images[2].name}
    assert all(tensor.isfinite().all() for tensor in load_weights(tmp_path / "run").values())


LAST_LAYERS = {
    "classification": ("fc.",),
    "detection": ("roi_heads.box_predictor.", "roi_heads.mask_predictor.mask_fcn_logits."),
    "segmentation": ("head.",),
}


def test_other_class_names_reinitialize_only_the_last_layers(task, finished):
    recipe, trained = replace(read_recipe(finished / "recipe.json"), weights=str(finished)), load_weights(finished)
    names = load(finished).classes[task == "segmentation" :]  # without the background
    for classes in (names, names[::-1], ("cup", "fork"), (*names, "third")):
        state = initialized_model(recipe, classes).state_dict()
        changed = {name for name in state if not torch.equal(state[name], trained[name])}
        assert changed == {name for name in state if name.startswith(LAST_LAYERS[task]) and classes != names}


INVALID = [
    ("weights", "nowhere", "nowhere must be a run folder"),
    ("model", "resnet0", "there is no model named"),
    ("model_options", {"scope": 4}, "scope"),
    ("training_images", 1_000, "training_images must be "),
    ("data", "nowhere", "nowhere"),
]


@pytest.mark.parametrize(("field", "value", "message"), INVALID, ids=[field for field, *_ in INVALID])
def test_rejected_recipes_leave_no_folder(field, value, message, recipe, tmp_path):
    with pytest.raises((InputError, FileNotFoundError), match=message):
        run.start(replace(recipe, **{field: value}), tmp_path / "runs/new")
    assert not (tmp_path / "runs").exists()
