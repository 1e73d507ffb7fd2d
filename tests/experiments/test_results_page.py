"""The tables of docs/results.md are those of the committed results."""

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import lambdanets
from scripts import ROOT, load_script


@pytest.mark.parametrize("script", ["claims", "frontier", "photographs"])
def test_tables_are_those_of_the_committed_results(script, tmp_path, monkeypatch):
    module = load_script(f"experiments/{script}.py")
    monkeypatch.setattr(module, "FIGURE", tmp_path / "figure.png", raising=False)
    text = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    before, _, rest = text.partition(module.BEGIN)
    page = tmp_path / "results.md"
    page.write_text(before + module.BEGIN + module.END + rest.partition(module.END)[2], encoding="utf-8")
    monkeypatch.setattr(sys, "argv", [script, "--page", str(page)])
    module.main()
    assert page.read_text(encoding="utf-8") == text


def test_differences_in_the_summary_are_those_of_the_claims():
    claims = load_script("experiments/claims.py")
    summary = (ROOT / "docs/results.md").read_text(encoding="utf-8").partition("## The paper's claims")[0]
    number = r"([+-]\d+\.\d+)"
    triples = re.findall(rf"{number} \((?:95% interval )?{number} to {number}\)", summary)
    assert len(triples) >= 4
    for values in triples:
        digits = len(values[0].partition(".")[2])
        formatted = "{} ({} to {})".format(*values)
        assert formatted in [claims.format_difference(each.differences, digits) for each in claims.accuracy()]


def test_verdict_follows_from_the_confidence_interval():
    claims = load_script("experiments/claims.py")
    assert claims.verdict([1.0, 1.1, 0.9]) == "confirmed"
    assert claims.verdict([-1.0, -1.1, -0.9]) == "refuted"
    assert claims.verdict([1.0, -1.1, 0.9]) == "undecided"
    assert claims.verdict([5.0]) == "undecided"


def test_speedup_is_interpolated_at_equal_accuracy():
    frontier = load_script("experiments/frontier.py")
    ratios = frontier.speedups([(80.0, 8.0), (81.0, 5.0), (90.0, 1.0)], [(80.0, 4.0), (82.0, 1.0)])
    assert ratios == pytest.approx({80.0: 2.0, 81.0: 2.5})


def test_photographs_are_trained_with_each_seed_and_size(tmp_path, monkeypatch):
    script = load_script("experiments/photographs.py")
    commands = []
    page, out = tmp_path / "results.md", tmp_path / "photographs.json"
    page.write_text(script.BEGIN + script.END, encoding="utf-8")

    def train(command, check):
        commands.append(command)
        run = Path(command[command.index("--run") + 1])
        run.mkdir(parents=True)
        seed, size = (int(command[command.index(option) + 1]) for option in ("--seed", "--image-size"))
        top1 = 0.5 + 0.01 * seed + 0.1 * ("lambda" in run.name) + 0.0625 * (size > 64)
        fields = dict.fromkeys(script.RUN_FIELDS, 7) | {"top1": top1, "hardware": {"processor": f"CPU {seed}"}}
        (run / "result.json").write_text(json.dumps(fields), encoding="utf-8")
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr("seeded_runs.subprocess", SimpleNamespace(run=train))
    options = ["--work", tmp_path / "runs", "--out", out, "--page", page, "--sizes", 64, 96, "--seeds"]
    for seed in (0, 1):
        monkeypatch.setattr(sys, "argv", list(map(str, ["photographs.py", tmp_path / "data", *options, seed])))
        script.main()
    assert len(commands) == 8
    text = page.read_text(encoding="utf-8")
    assert "| paired difference, 95% interval | +10.0 (+10.0 to +10.0) | +10.0 (+10.0 to +10.0) |" in text
    assert "7 epochs, mean ± std of 2 seeds, trained on CPU 0 (seed 0) and CPU 1 (seed 1):" in text
    assert "| 50.5 ± 0.7 | 56.8 ± 0.7 | +6.2 (+6.2 to +6.2) |" in text


def test_learning_rates_are_compared_on_held_out_images(tmp_path, monkeypatch):
    script = load_script("experiments/photographs.py")
    commands = []

    def train(command, check):
        commands.append(command)
        rate = float(command[command.index("--learning-rate") + 1])
        run = Path(command[command.index("--run") + 1])
        run.mkdir(parents=True)
        result = dict.fromkeys(script.RUN_FIELDS, 7) | {"held_out_top1": rate, "top1": 0.9}
        (run / "result.json").write_text(json.dumps(result), encoding="utf-8")
        (run / "metrics.csv").write_text("step,split,top1\n1,val,0.5\n", encoding="utf-8")
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr("seeded_runs.subprocess", SimpleNamespace(run=train))
    out = tmp_path / "rates.json"
    options = [tmp_path / "data", "--work", tmp_path / "runs", "--out", out, "--tune", 0.2, 0.1]
    monkeypatch.setattr(sys, "argv", list(map(str, ["photographs.py", *options])))
    script.main()
    assert all(command[command.index("--hold-out") + 1] == "0.2" for command in commands)
    runs = json.loads(out.read_text(encoding="utf-8"))["runs"]
    assert [(run["learning_rate"], run["held_out_top1"]) for run in runs] == [(0.1, 0.1), (0.2, 0.2)]
    assert all(run["held_out_top1_by_epoch"] == [0.5] for run in runs)


@pytest.mark.figures
def test_questions_are_answered_with_tuned_rates_and_corrected_intervals(tmp_path, monkeypatch):
    script = load_script("experiments/questions.py")
    page = tmp_path / "results.md"
    page.write_text("".join(script.markers("questions")), encoding="utf-8")
    monkeypatch.setattr(script, "LEARNING_RATES", tmp_path / "rates.json")
    monkeypatch.setattr(script, "RESULTS", tmp_path / "runs.json")
    monkeypatch.setattr(script, "STEPS", tmp_path / "steps.json")
    monkeypatch.setattr(script, "BATCH", (2, 3, 8, 8))
    (tmp_path / "results").mkdir()
    gains = {"lambda-layer": 3.0, "position": 2.95, "content": 0.0, "3x3": 1.0, "Performer": 4.0}  # in points

    def train(command, check):
        rate, seed = (float(command[command.index(option) + 1]) for option in ("--learning-rate", "--seed"))
        run = Path(command[command.index("--run") + 1])
        run.mkdir(parents=True)
        name = next(name for name in gains if run.name.startswith(name))
        noise = {"position": 0.3, "lambda-layer": 0.0}.get(name, 0.1) * (-1) ** seed
        scores = {"held_out_top1": -abs(rate - 0.4), "top1": 0.8 + (gains[name] + noise + seed) / 100}
        result = dict.fromkeys(script.RUN_FIELDS, 7) | scores | {"hardware": {"processor": "CPU"}}
        (run / "result.json").write_text(json.dumps(result), encoding="utf-8")
        (run / "metrics.csv").write_text(f"split,top1\nval,0.5\nval,{scores['top1']}\n", encoding="utf-8")
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr("seeded_runs.subprocess", SimpleNamespace(run=train))
    options = [tmp_path / "data", "--work", tmp_path / "runs", "--page", page]
    for step in (["--steps"], [*options, "--tune"], options):
        monkeypatch.setattr(sys, "argv", list(map(str, ["questions.py", *step])))
        script.main()
    assert (tmp_path / "results/questions.png").stat().st_size > 10_000
    runs = json.loads((tmp_path / "runs.json").read_text(encoding="utf-8"))["runs"]
    assert len(runs) == 40
    assert {run["learning_rate"] for run in runs} == {0.4}
    rows = [
        line.strip("| ").split(" | ") for line in page.read_text(encoding="utf-8").splitlines() if "more accur" in line
    ]
    assert [(row[3], row[-1]) for row in rows] == [
        ("+2.00", "yes"),
        ("+0.05", "undecided"),
        ("+3.00", "yes"),
        ("-1.00", "no"),
    ]
    narrow, wide = ([float(bound) for bound in rows[1][column].split(" to ")] for column in (4, 5))
    assert wide[0] < narrow[0] < 0.05 < narrow[1] < wide[1]


def test_holm_corrects_the_smallest_p_value_most():
    holm = load_script("experiments/questions.py").holm
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_failed_run_does_not_stop_the_others(tmp_path, monkeypatch):
    seeded_runs = load_script("experiments/seeded_runs.py")

    def train(command, check):
        folder = tmp_path / command[-1]
        (folder / "result.json").write_text('{"top1": 0.5}', encoding="utf-8")
        return SimpleNamespace(returncode=int(command[-1] == "failing"))

    names = ("failing", "finished")
    for name in names:
        (tmp_path / name).mkdir()
    monkeypatch.setattr(seeded_runs, "subprocess", SimpleNamespace(run=train))
    runs = seeded_runs.train({tmp_path / name: [name] for name in names}, jobs=1)
    assert next(runs) == (tmp_path / "finished", {"top1": 0.5})
    with pytest.raises(SystemExit, match=r"failing \(exit code 1\)"):
        next(runs)


def test_mixers_with_the_same_seed_have_equal_initial_weights():
    networks = []
    for mixer in ("convolution", "lambda"):
        torch.manual_seed(3)
        networks.append(lambdanets.create_model("resnet20_mixer_small", mixer=mixer, pattern="CCLL").state_dict())
    shared = [name for name, x in networks[0].items() if name in networks[1] and x.shape == networks[1][name].shape]
    assert len(shared) > 100
    assert all(networks[0][name].equal(networks[1][name]) for name in shared)


def test_section_is_not_written_without_its_markers(tmp_path):
    pages = load_script("experiments/pages.py")
    page = tmp_path / "page.md"
    page.write_text("before\n" + pages.markers("claims")[0] + "after\n", encoding="utf-8")
    with pytest.raises(ValueError, match="must have the lines"):
        pages.replace_section(page, pages.markers("claims"), "text\n")
    assert page.read_text(encoding="utf-8").endswith("after\n")
