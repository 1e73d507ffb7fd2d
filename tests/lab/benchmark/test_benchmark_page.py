"""docs/benchmark.md and README.md agree with experiments/results."""

import json
import re
import statistics

from scripts import ROOT, load_script

RESULTS = json.loads((ROOT / "experiments/results/xeon-2-cores/layer.json").read_text(encoding="utf-8"))
BASELINES = ("lambdanets", "convolution", "lambda-networks", "timm")


def milliseconds(scope, phase):
    """Median times by shape and layer."""
    times = {}
    for row in RESULTS["rows"]:
        sizes = row["sizes"]
        if (sizes["scope"], sizes["pass"]) == (scope, phase):
            times.setdefault(sizes["shape"], {})[row["candidate"]] = 1000 * statistics.median(row["seconds"])
    return times


def table_rows(text):
    cells = ([cell.strip(" *") for cell in line.split("|")[1:-1]] for line in text.splitlines())
    return [row for row in cells if row and re.fullmatch(r"\d+x\d+x\d+", row[0])]


def test_page_has_the_times_of_the_committed_results():
    page = (ROOT / "docs/benchmark.md").read_text(encoding="utf-8")
    sections = re.split(r"^Scope (\d+), (\w+).*:$", page, flags=re.MULTILINE)[1:]
    assert len(sections) == 12
    for scope, phase, text in zip(sections[::3], sections[1::3], sections[2::3], strict=True):
        times = milliseconds(int(scope), phase)
        expected = [
            [f"{times[row[0]][name]:.{0 if times[row[0]][name] >= 100 else 1}f}" for name in BASELINES]
            for row in table_rows(text)
        ]
        assert [row[1:] for row in table_rows(text)] == expected
        assert len(expected) == len(times)


def test_readme_has_the_times_of_the_committed_results():
    times = milliseconds(23, "training")
    rows = table_rows((ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(rows) == 3
    assert [row[1:] for row in rows] == [[f"{times[row[0]][name]:.0f}" for name in BASELINES] for row in rows]


def test_script_writes_the_committed_sections():
    script = load_script("experiments/benchmark.py")
    assert script.page_section() in (ROOT / "docs/benchmark.md").read_text(encoding="utf-8")
    assert script.readme_section() in (ROOT / "README.md").read_text(encoding="utf-8")
