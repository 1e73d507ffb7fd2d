import importlib.util
import json
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks/plan.py"


def load():
    spec = importlib.util.spec_from_file_location("benchmark_of_the_plan", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_script_compares_predicted_with_measured_times_and_names_the_choice(monkeypatch, tmp_path, capsys):
    script = load()
    monkeypatch.setattr(script, "SHAPES", [((6, 5), (5, 5), 2, 4), ((9,), (5,), 1, 4)])
    monkeypatch.setattr(sys, "argv", ["plan.py", "--out", str(tmp_path / "plan.json")])
    script.main()
    rows = json.loads((tmp_path / "plan.json").read_text())["rows"]
    assert [(row["grid"], row["way"]) for row in rows] == [
        (grid, way) for grid in ([6, 5], [9]) for way in ("forward", "backward")
    ]
    for row in rows:
        assert row["chosen"] in row["seconds"]
        assert all(figures["measured"] > 0 < figures["predicted"] for figures in row["seconds"].values())
    assert "chosen / best: geometric mean" in capsys.readouterr().out


def test_the_loss_is_the_time_of_the_choice_over_the_fastest():
    row = {"chosen": "a", "seconds": {"a": {"measured": 3.0}, "b": {"measured": 2.0}}}
    assert load().loss(row) == 1.5
