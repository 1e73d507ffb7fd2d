"""Each test that docs/faults.md names is there, and the kills it tells of are those that were measured."""

import ast
import json
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/faults.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE)
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| what goes wrong")]


@cache
def functions_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_each_test_on_the_page_exists(file, name):
    assert name in functions_of(ROOT / "tests" / file)


def test_each_row_names_one_test():
    faults = [row for row in ROWS if row.count("|") == 4]
    assert len(faults) == len(NAMED) > 80
    assert all(len(re.findall(r"::", row)) == 1 for row in faults)


def test_the_kills_on_the_page_are_those_in_the_file():
    result = json.loads((ROOT / "benchmarks/results/epyc-2-cores/kills.json").read_text(encoding="utf-8"))
    assert result["kills"] == sum(result["by_phase"].values()) == len(result["each"]) == 50
    assert f"After {result['left_an_unfinished_file']} an unfinished file lay in the folder" in PAGE
    table = dict(re.findall(r"^\| ([^|]+) \| (\d+) \|$", PAGE, flags=re.MULTILINE))
    assert {phase: str(count) for phase, count in result["by_phase"].items()}.items() <= table.items()
