import re
import sys
from pathlib import Path

from lambdanets_lab.mixers import MIXERS
from lambdanets_lab.studies.catalog import STUDIES
from lambdanets_lab.studies.results import read_comparison
from scripts import load_script

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/comparison.md").read_text(encoding="utf-8")


def test_script_reproduces_the_committed_page(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["comparison.py", "--out", str(tmp_path)])
    load_script("experiments/comparison.py").main()
    assert (tmp_path / "comparison.md").read_text(encoding="utf-8") == PAGE
    figures = re.findall(r"!\[.*\]\((.*)\)", PAGE)
    cifar10 = {
        f"comparison/cifar10/{name}{end}.png" for name in ("mixers", "content_position") for end in ("", "_curves")
    }
    assert {f"comparison/{name}.png" for name in STUDIES} | cifar10 == {*figures}
    assert all((tmp_path / name).is_file() and (ROOT / "docs" / name).is_file() for name in figures)


def test_ten_mixers_have_three_seeds_on_real_images():
    summary = read_comparison(ROOT / "experiments/results/xeon-2-cores/fashion_mnist.json")
    mixers = [row for row in summary["studies"]["mixers"]["variants"] if row["seeds"] >= 3]
    assert len(mixers) >= 10
    assert summary["validation_images"] == 10_000


def test_page_cites_a_paper_for_every_mixer():
    rows = {row.split("`")[1]: row for row in PAGE.split("## Mixers\n")[1].splitlines() if row.startswith("| `")}
    assert list(rows) == list(MIXERS)
    assert all(re.search(r"(20(1[4-9]|2\d))", row) for row in rows.values())
