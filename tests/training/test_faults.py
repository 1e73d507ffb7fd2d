"""Faults during a run in one process."""

import json
import math
import multiprocessing
import resource
import shlex
import shutil
import signal
import time
from dataclasses import replace

import pytest
import torch

from lambdanets.cli import main
from lambdanets.errors import InputError
from lambdanets.inference.classifier import Classifier
from lambdanets.records import write_json
from lambdanets.tasks.classification import ClassificationTask
from lambdanets.training import micro_batches, run
from lambdanets.training.module import TrainingModule
from training.runs import CrashError, assert_same_result, at_step, crash, interrupted_run, resume


def test_early_stopping_resumes_bit_identically(quick, tmp_path, monkeypatch):
    top1_by_epoch = [0.25, 0.75, 0.5, 0.5, 0.25, 0.25]

    def on_validation_epoch_end(self):
        self.validation_metrics = {"loss": 1.0, "top1": top1_by_epoch[self.current_epoch]}

    monkeypatch.setattr(TrainingModule, "on_validation_epoch_end", on_validation_epoch_end)
    recipe = replace(quick, epochs=6, hold_out=0.25, patience=2, checkpoint_every=1000)  # 2 steps per epoch
    result = run.start(recipe, tmp_path / "uninterrupted")
    assert (result["epochs"], result["held_out_top1"]) == (4, 0.75)
    for step in (4, 7):
        folder = interrupted_run(recipe, tmp_path / "interrupted", monkeypatch, step)
    with monkeypatch.context() as patch:
        patch.setattr(Classifier, "evaluate", lambda *_, **options: crash())
        with pytest.raises(CrashError):
            run.start(recipe, folder)
    assert (folder / "weights.safetensors").is_file()  # nobody has to wait for an evaluation that fails
    at_step(monkeypatch, 8, lambda: pytest.fail("trained again"))
    resume(folder)
    assert_same_result(tmp_path / "uninterrupted", folder)


def test_repeating_the_command_resumes_and_then_changes_no_file(quick, quick_run, tmp_path, monkeypatch):
    folder = interrupted_run(quick, tmp_path / "run", monkeypatch, step=4)
    steps = []
    with monkeypatch.context() as patch:
        for step in range(9):
            at_step(patch, step, lambda step=step: steps.append(step))
        run.start(quick, folder)
    assert steps == [4, 5, 6, 7, 8]
    assert_same_result(quick_run, folder)
    times = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert run.start(quick, folder)["epochs"] == 3
    assert times == {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_more_than_max_unreadable_images_stop_the_run(quick, two_classes, tmp_path):
    quick = replace(quick, epochs=1)
    for number in range(4, 8):
        (two_classes / f"dark/{number:02}.png").write_bytes(b"no image")
    with pytest.raises(
        InputError, match=r"images cannot be read, more than max_unreadable \(1\): .*dark/0\d\.png: it is not an image"
    ):
        run.start(replace(quick, max_unreadable=1), tmp_path / "run")
    # the same command with a higher limit resumes
    assert len(run.start(replace(quick, max_unreadable=4), tmp_path / "run")["unreadable"]) == 4


def test_nan_ends_the_run_before_a_checkpoint_has_it(quick, tmp_path, monkeypatch):
    folder = interrupted_run(replace(quick, checkpoint_every=1), tmp_path / "run", monkeypatch, step=4)
    last = (folder / "checkpoints/last.ckpt").read_bytes()
    losses = ClassificationTask.losses
    with monkeypatch.context() as patch:
        patch.setattr(ClassificationTask, "losses", lambda *args: {k: v * math.nan for k, v in losses(*args).items()})
        with pytest.raises(InputError, match="became inf or nan before step 5; lower learning_rate"):
            resume(folder)
    assert (folder / "checkpoints/last.ckpt").read_bytes() == last
    with monkeypatch.context() as patch:  # with finite gradients
        patch.setattr(ClassificationTask, "losses", lambda *args: {k: v + math.inf for k, v in losses(*args).items()})
        with pytest.raises(InputError, match="became inf or nan"):
            resume(folder)
    with pytest.raises(InputError, match="the loss or a gradient became inf or nan"):
        run.start(replace(quick, learning_rate=1e30, warmup_epochs=0, optimizer="sgd"), tmp_path / "diverging")


def test_micro_batches_are_halved_to_fit_into_memory(quick, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(micro_batches, "largest_micro_batch", lambda trial, requested, free: -(-requested // 2))
    folder = interrupted_run(quick, tmp_path / "run", monkeypatch, step=0)
    assert json.loads((folder / "recipe.json").read_text())["micro_batch"] == 3
    assert "a micro-batch of 6 images does not fit into memory: using 3" in capsys.readouterr().err


def run_train_command(recipe, folder):
    """Start a run of the recipe with `lambdanets train`, and return the exit code."""
    folder.mkdir()
    write_json(folder / "recipe.json", run.resolve_recipe(recipe).fields())
    return main(["train", "--resume", str(folder)])


def test_out_of_memory_in_a_step_suggests_a_smaller_micro_batch(quick, tmp_path, monkeypatch, capsys):
    def raise_out_of_memory():
        raise torch.OutOfMemoryError

    at_step(monkeypatch, 1, raise_out_of_memory)
    assert run_train_command(quick, tmp_path / "run") == 2
    assert "a smaller batch (in training --micro-batch), model or image size; resume with: " in capsys.readouterr().err


def test_signal_stops_training_and_prints_the_command_to_resume(quick, tmp_path, monkeypatch, capsys):
    at_step(monkeypatch, 1, lambda: signal.raise_signal(signal.SIGTERM))
    assert run_train_command(replace(quick, epochs=1), tmp_path / "run") == 130
    printed = capsys.readouterr().err.splitlines()[-1].partition("stopped; resume with: ")[2]
    words = shlex.split(printed)
    assert shutil.which(words[0])  # it can be typed as it is
    assert main(words[words.index("train") :]) == 0
    assert (tmp_path / "run/result.json").exists()


def test_run_stopped_by_a_file_size_limit_resumes_bit_identically(quick, quick_run, tmp_path, monkeypatch, capsys):
    # the limit applies from step 3; without Python's handling of SIGXFSZ, exceeding it would kill the process
    old_limits, folder = resource.getrlimit(resource.RLIMIT_FSIZE), tmp_path / "run"
    with monkeypatch.context() as patch:
        at_step(patch, 3, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, old_limits[1])))
        try:
            exit_code = run_train_command(replace(quick, checkpoint_every=1), folder)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, old_limits)
    assert exit_code == 2
    assert "last.ckpt: File too large; resume with: " in capsys.readouterr().err.splitlines()[-1]
    assert torch.load(folder / "checkpoints/last.ckpt", weights_only=True)["global_step"] == 3
    assert list(folder.rglob("*.unfinished")) == []
    assert main(["train", "--resume", str(folder)]) == 0
    assert_same_result(quick_run, folder)


@pytest.mark.slow
def test_run_whose_worker_is_killed_resumes_bit_identically(quick, quick_run, tmp_path, monkeypatch, capsys):
    def kill_workers():
        for worker in multiprocessing.active_children():
            worker.kill()
        time.sleep(5)  # interrupted by PyTorch's handler of SIGCHLD

    with monkeypatch.context() as patch:
        at_step(patch, 4, kill_workers)
        assert run_train_command(replace(quick, workers=1), tmp_path / "run") == 2
    error = capsys.readouterr().err
    assert "a data loading worker was killed" in error
    assert "Traceback" not in error
    assert main(["train", "--resume", str(tmp_path / "run")]) == 0
    assert_same_result(quick_run, tmp_path / "run")
