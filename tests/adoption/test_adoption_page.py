"""The speed table and figure of docs/adoption.md are those of the committed results."""

import sys
from pathlib import Path

from scripts import load_script

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/adoption.md"


def test_speed_table_is_that_of_the_committed_results(tmp_path, monkeypatch):
    page = tmp_path / "adoption.md"
    script = load_script("experiments/adopted_networks.py")
    text = PAGE.read_text(encoding="utf-8")
    before, begin, rest = text.partition(script.BEGIN)
    _, end, after = rest.partition(script.END)
    page.write_text(before + begin + end + after, encoding="utf-8")
    assert len(before + begin + end + after) < len(text)
    monkeypatch.setattr(sys, "argv", ["adopted_networks.py", "--page", str(page)])
    script.main()
    assert page.read_text(encoding="utf-8") == text
    assert (tmp_path / "adopted_networks.png").stat().st_size > 0
