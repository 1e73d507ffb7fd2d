import json
import sys

from scripts import load_script


def test_script_compares_predicted_and_measured_times(monkeypatch, tmp_path, capsys):
    script = load_script("experiments/plan.py")
    monkeypatch.setattr(script, "SHAPES", [((6, 5), (5, 5), 2, 4), ((9,), (5,), 1, 4)])
    monkeypatch.setattr(sys, "argv", ["plan.py", "--out", str(tmp_path / "plan.json")])
    script.main()
    rows = json.loads((tmp_path / "plan.json").read_text())["rows"]
    assert [(row["grid"], row["pass"]) for row in rows] == [
        (grid, name) for grid in ([6, 5], [9]) for name in ("forward", "backward")
    ]
    for row in rows:
        assert row["chosen"] in row["seconds"]
        assert all(times["measured"] > 0 < times["predicted"] for times in row["seconds"].values())
    assert "chosen / best: geometric mean" in capsys.readouterr().out


def test_slowdown_is_the_chosen_time_relative_to_the_fastest():
    row = {"chosen": "a", "seconds": {"a": {"measured": 3.0}, "b": {"measured": 2.0}}}
    assert load_script("experiments/plan.py").slowdown(row) == 1.5
