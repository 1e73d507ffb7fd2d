"""README.md and docs/: every command parses, every link resolves, and the Python of guides runs."""

import re
import shlex
from pathlib import Path
from urllib.parse import unquote

import pytest
import tyro

from lambdanets.cli import main

ROOT = Path(__file__).parents[1]
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in [ROOT / "README.md", *DOCS]}
LINKED = [*PAGES, "CONTRIBUTING.md", "DESIGN.md", "CHANGELOG.md"]


def commands_of(page):
    """The commands in indented and fenced blocks, also after torchrun, and in single backticks."""
    text = re.sub(r"```\w+\n.*?```", "", page.replace("\\\n", " "), flags=re.DOTALL)
    in_blocks = re.findall(r"^(?: {4,})?(?:torchrun .*-- )?(lambdanets .*)$", text, flags=re.MULTILINE)
    return in_blocks + re.findall(r"`(lambdanets [^`\n]*)`", text)


def python_of(page):
    return re.findall(r"```python\n(.*?)```", PAGES[page], flags=re.DOTALL)


class ParsedError(Exception):
    """The options of a command were parsed."""


@pytest.mark.parametrize("command", sorted({command for page in PAGES.values() for command in commands_of(page)}))
def test_every_command_parses(command, monkeypatch, tmp_path):
    (block,) = python_of("docs/training.md")
    (tmp_path / "my_recipe.py").write_text(block)
    (tmp_path / "docs").mkdir()
    monkeypatch.chdir(tmp_path)
    parse = tyro.cli

    def parse_only(*arguments, **options):
        _, unknown = parse(*arguments, **options)
        assert not unknown
        raise ParsedError

    monkeypatch.setattr(tyro, "cli", parse_only)
    arguments = shlex.split(command, comments=True)[1:]
    if "--help" in arguments:
        with pytest.raises(SystemExit, match="0"):
            main(arguments)
    else:
        with pytest.raises(ParsedError):
            main(arguments)


@pytest.mark.parametrize("page", LINKED)
def test_every_link_resolves_to_a_file_and_heading(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in link:
            continue
        name, _, anchor = unquote(link).partition("#")
        target = (ROOT / page).parent / name if name else ROOT / page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors_of(target), link


def anchors_of(path):
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_index_has_one_line_per_page():
    listed = re.findall(r"^\| \[[^]]*\]\((\w+\.md)\) \|", PAGES["docs/README.md"], flags=re.MULTILINE)
    assert sorted(listed) == sorted(path.name for path in DOCS if path.name != "README.md")


@pytest.mark.parametrize("page", ["docs/adoption.md", "docs/layers.md", "docs/engine.md"])
def test_python_of_the_page_runs_and_prints_the_shapes_it_states(page, capsys):
    names = {}
    for block in python_of(page):
        exec(block, names)
    printed = capsys.readouterr().out
    for stated in re.findall(r"print\(.*\.shape\)  # \((.*)\)$", PAGES[page], flags=re.MULTILINE):
        assert f"[{stated}]" in printed
    if page == "docs/layers.md":
        sides = {tuple(each.shape) for name, each in names["model"].named_parameters() if name.endswith("table")}
        assert sides == {(23, 23, 16)}
