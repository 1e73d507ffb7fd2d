"""The Python example of README.md runs, and the page is short."""

import re
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_python_example_runs_and_prints_the_shapes_in_its_comments(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    exec(example, {})
    output = capsys.readouterr().out
    assert "[2, 64, 29, 20]" in output
    assert "[2, 10]" in output
    assert len([line for line in example.splitlines() if line and not line.startswith("import")]) <= 10


def test_readme_is_short():
    assert len(README.splitlines()) <= 110
    assert len(README.encode()) <= 10_000
