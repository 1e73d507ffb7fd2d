"""Each test that docs/faults.md lists exists and asserts something."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/faults.md").read_text(encoding="utf-8")
TESTS = re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE)
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| what goes wrong")]


@cache
def parse_functions(path: Path) -> dict[str, ast.FunctionDef]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@cache
def asserting_functions() -> set[str]:
    """Names of functions in tests/ that assert something, directly or by calling another one."""
    functions = [item for path in (ROOT / "tests").rglob("*.py") for item in parse_functions(path).items()]
    asserting = {name for name, node in functions if asserts(node)}
    others = [(name, called_names(node)) for name, node in functions if name not in asserting]
    while callers := {name for name, called in others if called & asserting} - asserting:
        asserting |= callers
    return asserting


def asserts(function: ast.FunctionDef) -> bool:
    """Whether the function itself can fail: by an assert that is not a constant, pytest.raises or the like."""
    conditions = (node.test for node in ast.walk(function) if isinstance(node, ast.Assert))
    return any(not isinstance(condition, ast.Constant) for condition in conditions) or bool(
        called_names(function) & {"raises", "fail", "assert_close", "assert_allclose", "assert_equal", "check_call"}
    )


def called_names(function: ast.FunctionDef) -> set[str]:
    functions = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
    return {node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "") for node in functions}


@pytest.mark.parametrize(("file", "name"), TESTS)
def test_each_test_on_the_page_exists_and_asserts_something(file, name):
    function = parse_functions(ROOT / "tests" / file)[name]
    assert asserts(function) or called_names(function) & asserting_functions()


def test_each_row_of_the_page_names_one_test():
    rows = [row for row in ROWS if row.count("|") == 4]
    assert len(rows) == len(TESTS) > 80
    assert all(len(re.findall(r"::", row)) == 1 for row in rows)
