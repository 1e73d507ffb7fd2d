"""Each test that docs/faults.md names exists and asserts something."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/faults.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE)
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| what goes wrong")]


@cache
def functions_of(path: Path) -> dict[str, ast.FunctionDef]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@cache
def checkers() -> set[str]:
    """Names of functions in tests/ that assert something, directly or through another of them."""
    functions = [item for path in (ROOT / "tests").rglob("*.py") for item in functions_of(path).items()]
    found = {name for name, node in functions if asserts(node)}
    called = [(name, calls(node)) for name, node in functions if name not in found]
    while more := {name for name, names in called if names & found} - found:
        found |= more
    return found


def asserts(function: ast.FunctionDef) -> bool:
    """Whether a test's own lines can fail: an assert of more than a constant, pytest.raises, or pytest.fail."""
    checked = (node.test for node in ast.walk(function) if isinstance(node, ast.Assert))
    return any(not isinstance(test, ast.Constant) for test in checked) or bool(
        calls(function) & {"raises", "fail", "assert_close", "assert_allclose", "assert_equal", "check_call"}
    )


def calls(function: ast.FunctionDef) -> set[str]:
    called = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
    return {each.attr if isinstance(each, ast.Attribute) else getattr(each, "id", "") for each in called}


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_each_test_on_the_page_exists_and_asserts_something(file, name):
    function = functions_of(ROOT / "tests" / file)[name]
    assert asserts(function) or calls(function) & checkers()


def test_each_row_names_one_test():
    faults = [row for row in ROWS if row.count("|") == 4]
    assert len(faults) == len(NAMED) > 80
    assert all(len(re.findall(r"::", row)) == 1 for row in faults)
