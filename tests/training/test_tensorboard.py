"""The event files in tensorboard/, as TensorBoard reads them."""

import csv
import multiprocessing
import os
import signal
import time
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lambdanets.training import metrics_log, run, speed
from training.runs import assert_same_result, at_step


@pytest.fixture(autouse=True)
def rows_every_second_step(monkeypatch):
    for module in (metrics_log, speed):
        monkeypatch.setattr(module, "STEPS_PER_ROW", 2)


def curves(folder):
    """The values of each tag by step; duplicate steps fail."""
    events = EventAccumulator(str(folder / "tensorboard"), {"scalars": 0}).Reload()
    found = {}
    for tag in events.Tags()["scalars"]:
        scalars = events.Scalars(tag)
        steps = [scalar.step for scalar in scalars]
        assert steps == sorted({*steps}), tag
        found[tag] = {scalar.step: scalar.value for scalar in scalars}
    return found


def rows_of(path, names, prefix=""):
    """The columns of a CSV file in the same form, rounded to float32 like events."""
    found = defaultdict(dict)
    with path.open() as file:
        for row in csv.DictReader(file):
            suffix = f"/{row['split']}" if "split" in row else ""
            for name in names:
                found[f"{prefix}{name}{suffix}"][int(row["step"])] = float(np.float32(row[name]))
    return found


def killed_at(recipe, folder, step, monkeypatch):
    """Run the recipe in a process that is killed at a step."""

    def work():
        torch.set_num_threads(1)
        at_step(monkeypatch, step, lambda: os.kill(os.getpid(), signal.SIGKILL))
        run.start(recipe, folder)

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join(100)
    assert process.exitcode == -signal.SIGKILL
    time.sleep(1)  # TensorBoard reads files in the order of the seconds in their names


def test_tensorboard_curves_equal_the_csv_files(quick, tmp_path):
    run.start(replace(quick, warmup_epochs=1.0), tmp_path / "run")
    found = curves(tmp_path / "run")
    rates = found.pop("learning_rate")
    assert [*rates] == [2, 3, 4, 6, 8, 9]
    assert found == {
        **rows_of(tmp_path / "run/metrics.csv", ("loss", "top1")),
        **rows_of(tmp_path / "run/speed.csv", speed.COLUMNS[1:], "speed/"),
    }


@pytest.mark.forks
@pytest.mark.slow
@pytest.mark.parametrize(("step", "every"), [(2, 200), (8, 4)])
def test_resumed_run_has_each_tensorboard_step_once(quick, step, every, tmp_path, monkeypatch):
    # killed after rows without a checkpoint in the first epoch, and after a row with one
    recipe = replace(quick, checkpoint_every=every)
    run.start(recipe, tmp_path / "whole")
    killed_at(recipe, tmp_path / "killed", step, monkeypatch)
    run.resume(tmp_path / "killed")
    assert_same_result(tmp_path / "whole", tmp_path / "killed")
    whole, killed = (
        {tag: [*values.items()] for tag, values in curves(tmp_path / name).items() if not tag.startswith("speed/")}
        for name in ("whole", "killed")
    )
    assert whole.keys() == {"learning_rate", "loss/train", "loss/val", "top1/train", "top1/val"}
    assert whole == killed
