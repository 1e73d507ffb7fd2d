"""Each row of docs/faults.md names a test that exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROWS = [line for line in (ROOT / "docs/faults.md").read_text(encoding="utf-8").splitlines() if line.count("|") == 4]


def test_each_row_of_the_page_names_one_test():
    named = [re.findall(r"`([\w/]+\.py)::(\w+)`", row) for row in ROWS if "::" in row]
    assert len(named) > 80
    assert all(len(tests) == 1 for tests in named)
    for ((file, name),) in named:
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), name
