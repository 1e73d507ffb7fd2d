"""The tables of docs/results.md are those of the committed results."""

import sys
from pathlib import Path

import pytest

from scripts import load_script

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("script", ["claims", "frontier"])
def test_tables_are_those_of_the_committed_results(script, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    module = load_script(f"experiments/{script}.py")
    monkeypatch.setattr(module, "FIGURE", tmp_path / "figure.png", raising=False)
    text = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    before, _, rest = text.partition(module.BEGIN)
    page = tmp_path / "results.md"
    page.write_text(before + module.BEGIN + module.END + rest.partition(module.END)[2], encoding="utf-8")
    monkeypatch.setattr(sys, "argv", [script, "--page", str(page)])
    module.main()
    assert page.read_text(encoding="utf-8") == text


def test_verdict_follows_from_the_confidence_interval(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    claims = load_script("experiments/claims.py")
    assert claims.verdict([1.0, 1.1, 0.9]) == "confirmed"
    assert claims.verdict([-1.0, -1.1, -0.9]) == "refuted"
    assert claims.verdict([1.0, -1.1, 0.9]) == "undecided"
    assert claims.verdict([5.0]) == "undecided"


def test_speedup_is_interpolated_at_equal_accuracy(monkeypatch):
    frontier = load_script("experiments/frontier.py")
    ratios = frontier.speedups([(80.0, 8.0), (81.0, 5.0), (90.0, 1.0)], [(80.0, 4.0), (82.0, 1.0)])
    assert ratios == pytest.approx({80.0: 2.0, 81.0: 2.5})
