"""Faults during a run in one process. docs/faults.md lists these and other faults with their tests."""

import errno
import json
import multiprocessing
import os
import shlex
import shutil
import signal
import time
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from lambdanets.cli import main
from lambdanets.errors import InputError
from lambdanets.models.weights import read_weights
from lambdanets.tasks.classification import task
from lambdanets.training import micro_batches, run
from lambdanets.training.module import TrainingModule
from lambdanets.training.recipe import write_recipe
from noise_images import write_two_classes
from training.runs import SEED, assert_same_result, at_step, interrupted_run, quick_recipe


def make_recipe(images):
    """A recipe of two epochs of three steps, with dropout and stochastic depth."""
    return replace(quick_recipe(images), epochs=2, flip=0.0, rand_augment=None, precision="32-true")


@pytest.fixture
def small(two_classes):
    return make_recipe(two_classes)


@pytest.fixture(scope="module")
def small_run(tmp_path_factory):
    """The folder of a finished run of `small`. Read-only."""
    folder = tmp_path_factory.mktemp("small")
    run.start(make_recipe(write_two_classes(folder / "images")), folder / "run")
    return folder / "run"


def replace_top1(patch):
    """Replace the top-1 in each epoch; it is best in the second one."""
    top1_by_epoch = [0.25, 0.75, 0.5, 0.5, 0.25, 0.25]

    def on_validation_epoch_end(self):
        self.validation_metrics = {"loss": 1.0, "top1": top1_by_epoch[self.current_epoch]}

    patch.setattr(TrainingModule, "on_validation_epoch_end", on_validation_epoch_end)


@pytest.fixture
def early_peak(small, monkeypatch):
    """A recipe of at most six epochs of two steps with held-out images and early stopping."""
    replace_top1(monkeypatch)
    return replace(small, epochs=6, hold_out=0.25, patience=2, checkpoint_every=1000)


@pytest.fixture(scope="module")
def early_stopped(tmp_path_factory):
    """The folder of a finished run of `early_peak`. Read-only."""
    folder = tmp_path_factory.mktemp("early")
    recipe = make_recipe(write_two_classes(folder / "images"))
    with pytest.MonkeyPatch.context() as patch:
        replace_top1(patch)
        run.start(replace(recipe, epochs=6, hold_out=0.25, patience=2, checkpoint_every=1000), folder / "run")
    return folder / "run"


def assert_same_best_ckpt(*folders):
    expected, actual = (read_weights(folder / "checkpoints/best.ckpt")[1]["state_dict"] for folder in folders)
    assert [name for name in expected | actual if not torch.equal(expected[name], actual[name])] == []


def test_early_stopping_resumes_bit_identically(early_peak, early_stopped, tmp_path, monkeypatch):
    for step in (4, 7):
        interrupted_run(early_peak, tmp_path / "interrupted", monkeypatch, step)
    result = run.start(early_peak, tmp_path / "interrupted")
    assert result["epochs"] == 4
    assert result["held_out_top1"] == 0.75
    assert_same_result(early_stopped, tmp_path / "interrupted")
    assert_same_best_ckpt(early_stopped, tmp_path / "interrupted")


def test_early_stopped_run_without_result_json_does_not_train_again(early_stopped, tmp_path, monkeypatch):
    folder = shutil.copytree(early_stopped, tmp_path / "stopped")
    (folder / "result.json").unlink()
    at_step(monkeypatch, 8, lambda: pytest.fail("trained again"))
    run.resume(folder)
    assert_same_result(early_stopped, folder)


def test_copied_run_keeps_best_ckpt_and_leaves_the_original_unchanged(early_peak, early_stopped, tmp_path, monkeypatch):
    interrupted_run(early_peak, tmp_path / "interrupted", monkeypatch, step=5)
    shutil.copytree(tmp_path / "interrupted", tmp_path / "copy")
    times_before = {path: path.stat().st_mtime_ns for path in (tmp_path / "interrupted").rglob("*")}
    run.start(early_peak, tmp_path / "copy")
    assert_same_result(early_stopped, tmp_path / "copy")
    assert_same_best_ckpt(early_stopped, tmp_path / "copy")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "interrupted").rglob("*")} == times_before


def test_partial_files_are_removed_when_a_run_resumes(small, tmp_path, monkeypatch):
    small = replace(small, epochs=1)
    folder = interrupted_run(small, tmp_path / "run", monkeypatch, step=2)
    for name in (".weights.safetensors.17.unfinished", "checkpoints/.last.ckpt.17.unfinished"):
        (folder / name).write_bytes(b"half")
    run.start(small, folder)
    assert list(folder.rglob("*.unfinished")) == []


def test_run_without_last_ckpt_resumes_without_its_initial_weights(small, small_run, tmp_path, monkeypatch):
    shutil.copytree(small_run, tmp_path / "base")
    small = replace(small, weights=str(tmp_path / "base"))
    run.start(small, tmp_path / "uninterrupted")
    folder = interrupted_run(small, tmp_path / "interrupted", monkeypatch, step=4)
    (folder / "checkpoints/last.ckpt").unlink()
    assert (folder / "checkpoints/before.ckpt").exists()
    shutil.rmtree(tmp_path / "base")
    run.resume(folder)
    assert_same_result(tmp_path / "uninterrupted", folder)


def test_error_for_two_damaged_checkpoints_says_which_file_to_remove(small, tmp_path, monkeypatch):
    folder = interrupted_run(small, tmp_path / "run", monkeypatch, step=4)
    for name in ("last.ckpt", "before.ckpt"):
        (folder / "checkpoints" / name).write_bytes(b"damaged")
    with pytest.raises(InputError, match=r"last\.ckpt .*; remove .*last\.ckpt to restart the run"):
        run.start(small, folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": SEED + 1}, rf"^seed must be {SEED}, got {SEED + 1}, since .* has a started run; .* or resume it"),
        ({"epochs": 9, "dropout": 0.0}, r"^epochs must be 2, got 9, and dropout must be 0\.1, got 0\.0, since"),
    ],
)
def test_error_for_another_recipe_names_the_fields_that_differ(small, changes, message, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    write_recipe(small, folder / "recipe.json")
    with pytest.raises(InputError, match=message):
        run.start(replace(small, **changes), folder)
    assert [path.name for path in folder.iterdir()] == ["recipe.json"]


def test_repeating_the_command_resumes_and_then_changes_no_file(small, small_run, tmp_path, monkeypatch):
    folder = interrupted_run(small, tmp_path / "run", monkeypatch, step=4)
    steps = []
    with monkeypatch.context() as patch:
        for step in range(6):
            at_step(patch, step, lambda step=step: steps.append(step))
        run.start(small, folder)
    assert steps == [4, 5]
    assert_same_result(small_run, folder)
    times_before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert run.start(small, folder)["epochs"] == 2
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == times_before


def test_more_than_max_unreadable_images_stop_the_run(small, two_classes, tmp_path):
    small = replace(small, epochs=1)
    for number in range(4, 8):
        (two_classes / f"dark/{number:02}.png").write_bytes(b"no image")
    with pytest.raises(
        InputError, match=r"images cannot be read, more than max_unreadable \(1\): .*dark/0\d\.png: it is not an image"
    ):
        run.start(replace(small, max_unreadable=1), tmp_path / "run")
    # the same command with a higher limit resumes
    assert len(run.start(replace(small, max_unreadable=4), tmp_path / "run")["unreadable"]) == 4


class NaN(nn.Module):
    def forward(self, x):
        return x * float("nan")


class NaNGradient(nn.Module):
    def forward(self, x):
        return x + 0 * (x - x.detach()).sqrt()  # the derivative of the square root is infinite at 0


class RandomNaN(nn.Module):
    """Divides by 0 at random; if `autocast`, only under autocast."""

    def __init__(self, autocast):
        super().__init__()
        self.autocast = autocast

    def forward(self, x):
        never_nan = self.autocast and not torch.is_autocast_enabled(x.device.type)
        return x / float(never_nan or torch.rand(()) < 0.8)


def replace_layer(monkeypatch, layer):
    """Replace an activation in the middle of each model that a run builds."""
    original = task.build_model

    def build_model(*arguments):
        model = original(*arguments)
        model.layer2[0].act2 = layer
        return model

    monkeypatch.setattr(task, "build_model", build_model)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_nan_loss_is_recomputed_with_the_same_seed_and_autocast(small, precision, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "check_precision", lambda precision: None)
    replace_layer(monkeypatch, RandomNaN(autocast=precision != "32-true"))
    message = r"the loss became nan at step \d+; the first module .* is layer2\.0\.act2 "
    with pytest.raises(InputError, match=message):
        run.start(replace(small, precision=precision, epochs=8), tmp_path / "run")


@pytest.mark.parametrize("micro_batch", [6, 3])
def test_nan_gradient_error_names_the_module(small, micro_batch, tmp_path, monkeypatch):
    replace_layer(monkeypatch, NaNGradient())
    message = r"gradient became inf or nan at step 0; the first module .* is layer2\.0\.bn2 \(.*; lower"
    with pytest.raises(InputError, match=message):
        run.start(replace(small, drop_path=0.0, micro_batch=micro_batch), tmp_path / "run")


def test_run_on_a_gpu_ends_before_a_checkpoint_with_nan(small, tmp_path, monkeypatch):
    # as on a GPU, where each step would have to wait for its loss
    monkeypatch.setattr(TrainingModule, "checks_each_step", False)
    folder = interrupted_run(replace(small, checkpoint_every=1), tmp_path / "run", monkeypatch, step=3)
    last = (folder / "checkpoints/last.ckpt").read_bytes()
    replace_layer(monkeypatch, NaN())
    with pytest.raises(InputError, match="became inf or nan before step 4; lower"):
        run.resume(folder)
    assert (folder / "checkpoints/last.ckpt").read_bytes() == last


def test_micro_batches_are_halved_to_fit_into_memory(small, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(micro_batches, "largest_micro_batch", lambda trial, requested, free: -(-requested // 2))
    folder = interrupted_run(small, tmp_path / "run", monkeypatch, step=0)
    assert json.loads((folder / "recipe.json").read_text())["micro_batch"] == 3
    assert "a micro-batch of 6 images does not fit into memory: using 3" in capsys.readouterr().err


def test_metrics_csv_is_intact_if_resuming_fails_to_rewrite_it(small, small_run, tmp_path, monkeypatch):
    folder = interrupted_run(replace(small, checkpoint_every=1), tmp_path / "run", monkeypatch, step=5)
    csv_before = (folder / "metrics.csv").read_text() + "9,9,train,1.0,1.0\n"  # a step after the checkpoint
    (folder / "metrics.csv").write_text(csv_before)

    def fsync(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(OSError, match="No space left"):
            run.resume(folder)
    assert (folder / "metrics.csv").read_text() == csv_before
    run.resume(folder)
    assert_same_result(small_run, folder)


@pytest.mark.parametrize(("cache", "micro_batch"), [(2**30, 6), (6 * 2**20, 3)])
def test_micro_batch_in_recipe_json_is_not_halved_for_page_cache(small, cache, micro_batch, tmp_path, monkeypatch):
    contents = {"memory.max": 2**30, "memory.current": 2**30, "memory.stat": f"inactive_file {cache}"}
    for name, content in contents.items():
        (tmp_path / name).write_text(str(content))
    (tmp_path / "membership").write_text("0::/\n")
    free_memory = partial(micro_batches.free_memory, cgroups=tmp_path, membership=tmp_path / "membership")
    monkeypatch.setattr(micro_batches, "free_memory", free_memory)
    interrupted_run(small, tmp_path / "run", monkeypatch, step=0)
    assert json.loads((tmp_path / "run/recipe.json").read_text())["micro_batch"] == micro_batch


def run_train_command(recipe, folder):
    """Start a run of the recipe with `lambdanets train`, and return the exit code."""
    folder.mkdir()
    write_recipe(recipe, folder / "recipe.json")
    return main(["train", "--resume", str(folder)])


def test_out_of_memory_in_a_step_suggests_a_smaller_micro_batch(small, tmp_path, monkeypatch, capsys):
    def raise_out_of_memory():
        raise torch.OutOfMemoryError

    at_step(monkeypatch, 1, raise_out_of_memory)
    assert run_train_command(small, tmp_path / "run") == 2
    assert "lambdanets: out of memory; run the same command with a smaller --micro-batch" in capsys.readouterr().err


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM], ids=lambda signum: signum.name)
def test_signal_stops_training_and_prints_the_command_to_resume(small, signum, tmp_path, monkeypatch, capsys):
    at_step(monkeypatch, 1, lambda: signal.raise_signal(signum))
    assert run_train_command(replace(small, epochs=1), tmp_path / "run") == 130
    printed = capsys.readouterr().err.splitlines()[-1].partition("stopped; resume with: ")[2]
    words = shlex.split(printed)
    assert shutil.which(words[0])  # it can be typed as it is
    assert main(words[words.index("train") :]) == 0
    assert (tmp_path / "run/result.json").exists()


@pytest.mark.slow
def test_run_whose_worker_is_killed_resumes_bit_identically(small, small_run, tmp_path, monkeypatch, capsys):
    def kill_workers():
        for worker in multiprocessing.active_children():
            worker.kill()
        time.sleep(5)  # interrupted by PyTorch's handler of SIGCHLD

    with monkeypatch.context() as patch:
        at_step(patch, 4, kill_workers)
        assert run_train_command(replace(small, workers=1), tmp_path / "run") == 2
    error = capsys.readouterr().err
    assert "a data loading worker was killed" in error
    assert "Traceback" not in error
    assert main(["train", "--resume", str(tmp_path / "run")]) == 0
    assert_same_result(small_run, tmp_path / "run")
