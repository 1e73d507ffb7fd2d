"""Scripts that train networks over seeds: which runs they start, and the tables of their results."""

import itertools
import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import lambdanets
from scripts import call_main, load_script


@pytest.fixture
def only_results(monkeypatch):
    """Trainings write only a result."""
    load_script("experiments/pages.py")  # adds the folder to the path

    def train(command, check):
        options = dict(itertools.pairwise(command))
        run, seed = Path(options["--run"]), int(options["--seed"])
        rate = float(options.get("--learning-rate", 0))
        value = 0.8 + 0.02 * seed + (0 if "convolution" in run.name else 0.01 * seed)
        value += 0.001 * (-1) ** seed if "only" in run.name or "Performer" in run.name else 0
        result = dict.fromkeys(("parameters", "epochs", "training_images"), 7)
        result |= {"top1": value, "held_out_top1": rate, "seconds": 60, "commit": "abc", "versions": {}}
        result |= {"hardware": {"processor": "CPU", "threads": 1}}
        run.mkdir(parents=True)
        (run / "result.json").write_text(json.dumps(result), encoding="utf-8")
        (run / "metrics.csv").write_text(f"split,top1\nval,0.5\nval,{value}\n", encoding="utf-8")
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr("seeded_runs.subprocess", SimpleNamespace(run=train))


@pytest.mark.figures
def test_questions_are_answered_with_tuned_rates_and_corrected_intervals(only_results, tmp_path, monkeypatch):
    script = load_script("experiments/questions.py")
    page = tmp_path / "results.md"
    page.write_text("<!-- written by experiments/questions.py -->\n<!-- end of questions -->\n", encoding="utf-8")
    for name in ("LEARNING_RATES", "OUT", "STEPS"):
        monkeypatch.setattr(script, name, tmp_path / f"{name}.json")
    monkeypatch.setattr(script, "BATCH", (2, 3, 8, 8))
    monkeypatch.setattr(
        script, "time_interleaved", lambda runs, **_: {name: run() or [1.0] for name, run in runs.items()}
    )
    options = [tmp_path / "data", "--work", tmp_path / "runs", "--page", page]
    for step in (["--steps", "--page", page], [*options, "--tune"], options):
        call_main(script, monkeypatch, *step)
    assert (tmp_path / "results/questions.png").stat().st_size > 10_000
    runs = json.loads((tmp_path / "OUT.json").read_text(encoding="utf-8"))["runs"]
    assert len(runs) == 40
    assert {run["learning_rate"] for run in runs} == {0.8}
    rows = [line.strip("| ").split(" | ") for line in page.read_text(encoding="utf-8").splitlines() if "more a" in line]
    assert [row[-1] for row in rows] == ["yes", "undecided", "undecided", "undecided"]
    assert rows[0][3] == "+3.50"
    narrow, wide = ([float(bound) for bound in rows[0][column].split(" to ")] for column in (4, 5))
    assert wide[0] < narrow[0] < 3.5 < narrow[1] < wide[1]
    p_value = rows[0][6]
    unfinished = [run for run in runs if run["layer"] != "content lambda only" or run["seed"] < 7]
    (tmp_path / "OUT.json").write_text(json.dumps({"runs": unfinished}), encoding="utf-8")
    call_main(script, monkeypatch, "--page", page)
    text = page.read_text(encoding="utf-8")
    assert "1 of 40 runs are still to be trained" in text
    assert f"| {p_value} | yes |" in text
    assert "content" not in text


def test_holm_corrects_the_smallest_p_value_most():
    holm = load_script("experiments/questions.py").holm
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_failed_run_does_not_stop_the_others_and_is_trained_again(tmp_path, monkeypatch):
    seeded_runs = load_script("experiments/seeded_runs.py")
    started = []

    def train(command, check):
        run = Path(command[-1])
        started.append(run.name)
        run.mkdir(parents=True, exist_ok=True)
        (run / "result.json").write_text(json.dumps(dict.fromkeys(seeded_runs.RUN_FIELDS, 1)), encoding="utf-8")
        return SimpleNamespace(returncode=int(started == ["seed0"]))

    monkeypatch.setattr(seeded_runs, "subprocess", SimpleNamespace(run=train))
    options, out = SimpleNamespace(work=tmp_path, jobs=1), tmp_path / "runs.json"
    keys = [{"seed": 0}, {"seed": 1}]
    train_missing = partial(seeded_runs.train_missing, options, out, "seed{seed}", keys)
    with pytest.raises(SystemExit, match=r"seed0 \(exit code 1\)"):
        train_missing(lambda seed: [seed], lambda run, result: {})
    assert [run["seed"] for run in seeded_runs.stored_runs(out)] == [1]
    train_missing(lambda seed: [seed], lambda run, result: {})
    assert started == ["seed0", "seed1", "seed0"]
    assert [run["seed"] for run in seeded_runs.stored_runs(out)] == [0, 1]


def test_mixers_with_the_same_seed_have_equal_initial_weights():
    networks = []
    for mixer in ("convolution", "lambda"):
        torch.manual_seed(3)
        networks.append(lambdanets.create_model("resnet20_mixer_small", mixer=mixer, pattern="CCLL").state_dict())
    shared = [name for name, x in networks[0].items() if name in networks[1] and x.shape == networks[1][name].shape]
    assert len(shared) > 100
    assert all(networks[0][name].equal(networks[1][name]) for name in shared)
