"""The event files in tensorboard/, read with TensorBoard."""

import csv
import os
import signal
import time
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lambdanets.training import callbacks, run
from lambdanets.training.module import make_schedule
from training.runs import assert_same_result, at_step, exit_codes, resume


def read_events(folder):
    """Return the values of each tag by step, and assert that no step occurs twice."""
    events = EventAccumulator(str(folder / "tensorboard"), {"scalars": 0}).Reload()
    values = {}
    for tag in events.Tags()["scalars"]:
        scalars = events.Scalars(tag)
        steps = [scalar.step for scalar in scalars]
        assert steps == sorted({*steps}), tag
        values[tag] = {scalar.step: scalar.value for scalar in scalars}
    return values


def read_metrics_csv(path):
    """Return metrics.csv in the form of `read_events`, rounded to float32 like events."""
    values = defaultdict(dict)
    with path.open() as file:
        for row in csv.DictReader(file):
            tags = {name: f"{name}/{row['split']}" for name in ("loss", "top1")}
            tags |= {name: f"speed/{name}" for name in callbacks.SPEED}
            for name, tag in tags.items():
                if row[name]:
                    values[tag][int(row["step"])] = float(np.float32(row[name]))
    return values


def run_until_killed(recipe, folder, step, monkeypatch):
    """Train the recipe in a process that is killed at a step."""

    def train():
        torch.set_num_threads(1)
        at_step(monkeypatch, step, lambda: os.kill(os.getpid(), signal.SIGKILL))
        run.start(recipe, folder)

    assert exit_codes(train, [()]) == [-signal.SIGKILL]
    time.sleep(1)  # TensorBoard orders event files by the seconds in their names


@pytest.mark.forks
def test_events_equal_metrics_csv_and_a_resumed_run_has_each_step_once(quick, tmp_path, monkeypatch):
    monkeypatch.setattr(callbacks, "STEPS_PER_ROW", 2)
    recipe = replace(quick, checkpoint_every=4, warmup_epochs=1.0)
    run.start(recipe, tmp_path / "uninterrupted")
    run_until_killed(recipe, tmp_path / "killed", 8, monkeypatch)  # when there are rows after the last checkpoint
    resume(tmp_path / "killed")
    assert_same_result(tmp_path / "uninterrupted", tmp_path / "killed")
    uninterrupted, killed = (read_events(tmp_path / name) for name in ("uninterrupted", "killed"))
    steps, schedule = (2, 3, 5, 6, 8, 9), make_schedule(recipe, 3)  # rows divide the three steps of an epoch evenly
    rates = {step: recipe.learning_rate * schedule(step - 1) for step in steps}  # with which the steps were taken
    assert uninterrupted["learning_rate"] == pytest.approx(rates)
    for name, events in (("uninterrupted", uninterrupted), ("killed", killed)):
        learning_rates = events.pop("learning_rate")
        assert events == read_metrics_csv(tmp_path / name / "metrics.csv")
        events["learning_rate"] = learning_rates
    for tag in ("learning_rate", "loss/train", "loss/val", "top1/train", "top1/val"):
        assert [*uninterrupted[tag].items()] == [*killed[tag].items()]
