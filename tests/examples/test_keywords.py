"""A task of one's own: the example of keyword spotting, with one entry in the registry."""

import json
import sys
import tomllib
import wave
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import lambdanets as ln
from lambdanets.cli import main
from lambdanets.data.batches import Batch
from lambdanets.recipes import find_recipe
from lambdanets.registry import TASKS
from lambdanets.training import run
from training.runs import SEED, initialized_model, interrupted_run, load_weights, read_metrics

FILE = Path(__file__).parents[2] / "examples/keywords/recipe.py"
GROUP = "lambdanets.tasks"


@pytest.fixture
def recipe(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(TASKS, "keywords", None)  # restored after the test
    return replace(find_recipe(str(FILE)), training_recordings=40, epochs=2, batch_size=8, seed=SEED)


def test_task_of_a_recipe_file_trains_resumes_and_evaluates(recipe, tmp_path, monkeypatch):
    result = run.start(recipe, tmp_path / "run")
    interrupted_run(recipe, tmp_path / "interrupted", monkeypatch, step=7)
    assert run.start(recipe, tmp_path / "interrupted")["accuracy"] == result["accuracy"]
    weights, resumed = (load_weights(tmp_path / name) for name in ("run", "interrupted"))
    assert all(weights[name].equal(tensor) for name, tensor in resumed.items())
    assert read_metrics(tmp_path / "run") == read_metrics(tmp_path / "interrupted")
    spotter = ln.load(tmp_path / "run")
    nothing = spotter.evaluator().batches(batch_size=1).collate([], [])
    unreadable = Batch(*nothing, torch.zeros(0), ["recording 0: damaged"], 1)
    assert spotter.evaluator().measure(unreadable) == []
    assert ln.evaluate(spotter).scores["accuracy"] == result["accuracy"]
    others = initialized_model(replace(recipe, weights=str(tmp_path / "run")), spotter.classes[::-1]).state_dict()
    assert {name for name in others if not others[name].equal(weights[name])} == {"head.weight", "head.bias"}
    assert spotter.infer([spotter.evaluator().images.load(3)[0]])[0] in spotter.classes


def test_commands_have_the_options_of_the_task(recipe, tmp_path, monkeypatch, capsys):
    options = "--noise 0.2 --epochs 2 --batch-size 4 --training-recordings 12 --run"
    assert main(["train", str(FILE), *options.split(), str(tmp_path / "run")]) == 0
    (scores,) = capsys.readouterr().out.splitlines()[-1:]
    assert scores.startswith("accuracy ")
    assert main(["train", str(FILE), "--resume", str(tmp_path / "run")]) == 0  # finished
    assert capsys.readouterr().out.splitlines()[-1] == scores
    del TASKS["keywords"]  # as in a new process; the task is found where it is installed
    assert main(["evaluate", str(tmp_path / "run")]) == 2
    assert "got 'keywords'" in capsys.readouterr().err
    project = tomllib.loads(FILE.with_name("pyproject.toml").read_text())["project"]
    installed = tmp_path / "site/keywords-0.1.dist-info/entry_points.txt"
    installed.parent.mkdir(parents=True)
    installed.write_text(f"[{GROUP}]\nkeywords = {project['entry-points'][GROUP]['keywords']}\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert main(["evaluate", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == ["100 recordings", scores]
    for index in range(3):
        samples = sys.modules["tones"].Recordings(3, seed=2).load(index)[0]
        with wave.open(str(tmp_path / f"{index}.wav"), "wb") as file:
            file.setparams((1, 2, 8000, 0, "NONE", ""))
            file.writeframes((samples.clamp(-1, 1) * 32767).short().numpy().tobytes())
    assert main(["predict", str(tmp_path / "run"), str(tmp_path), "--out", str(tmp_path / "found.jsonl")]) == 0
    rows = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text().splitlines()]
    assert [Path(row["path"]).name for row in rows] == ["0.wav", "1.wav", "2.wav"]
    assert {row["keyword"] for row in rows} <= {"rise", "fall", "peak", "dip"}
    assert ln.load(tmp_path / "run").predict([row["path"] for row in rows]) == [row["keyword"] for row in rows]
    assert main(["train", str(FILE), "--dry-run", "--training-recordings", "33", "--batch-size", "8"]) == 0
    assert "5 per epoch, 75 in 15 epochs; 8 images per step" in capsys.readouterr().out
