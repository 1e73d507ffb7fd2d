"""Every command of README.md and docs/ parses, every link resolves, and the Python code of guides runs."""

import re
import shlex
from pathlib import Path
from urllib.parse import unquote

import pytest

from lambdanets.cli import main, options

ROOT = Path(__file__).parents[1]
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in [ROOT / "README.md", *DOCS]}
PAGES_WITH_LINKS = [*PAGES, "CONTRIBUTING.md", "DESIGN.md", "CHANGELOG.md"]


def find_commands(page):
    """The `lambdanets` commands in indented and fenced blocks, also after torchrun, and in single backticks."""
    text = re.sub(r"```\w+\n.*?```", "", page.replace("\\\n", " "), flags=re.DOTALL)
    in_blocks = re.findall(r"^(?: {4,})?(?:torchrun .*-- )?(lambdanets .*)$", text, flags=re.MULTILINE)
    return in_blocks + re.findall(r"`(lambdanets [^`\n]*)`", text)


def python_blocks(page):
    return re.findall(r"```python\n(.*?)```", PAGES[page], flags=re.DOTALL)


class ParsedError(Exception):
    """Stops a command after its options were parsed."""


@pytest.mark.parametrize("command", sorted({command for page in PAGES.values() for command in find_commands(page)}))
def test_every_command_parses(command, monkeypatch, tmp_path):
    (block,) = python_blocks("docs/training.md")
    (tmp_path / "my_recipe.py").write_text(block)
    (tmp_path / "docs").mkdir()
    monkeypatch.chdir(tmp_path)
    parse_all = options.parse_all

    def parse_only(*arguments, **texts):
        parse_all(*arguments, **texts)
        raise ParsedError

    for module in ("options", "predict", "training"):
        monkeypatch.setattr(f"lambdanets.cli.{module}.parse_all", parse_only)
    arguments = shlex.split(command, comments=True)[1:]
    if "--help" in arguments:
        with pytest.raises(SystemExit, match="0"):
            main(arguments)
    else:
        with pytest.raises(ParsedError):
            main(arguments)


@pytest.mark.parametrize("page", PAGES_WITH_LINKS)
def test_every_link_resolves_to_a_file_and_heading(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in link:
            continue
        name, _, anchor = unquote(link).partition("#")
        target = (ROOT / page).parent / name if name else ROOT / page
        assert target.exists(), link
        if anchor:
            assert anchor in heading_anchors(target), link


def heading_anchors(path):
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_index_and_site_have_every_page():
    pages = {path.name for path in DOCS} - {"README.md"}
    assert set(re.findall(r"\]\((\w+\.md)\)", PAGES["docs/README.md"])) == pages
    assert pages <= set(re.findall(r"\w+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))


@pytest.mark.parametrize("page", ["docs/adoption.md", "docs/layers.md", "docs/engine.md"])
def test_python_code_runs_and_prints_the_shapes_in_its_comments(page, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the blocks write files
    variables = {}
    for block in python_blocks(page):
        if "runs/" not in block:  # the tests of the command that trains the run execute these
            exec(block, variables)
    output = capsys.readouterr().out
    for shape in re.findall(r"print\(.*\.shape\)  # \((.*)\)$", PAGES[page], flags=re.MULTILINE):
        assert f"[{shape}]" in output
    if page == "docs/layers.md":
        parameters = variables["model"].named_parameters()
        assert {tuple(parameter.shape) for name, parameter in parameters if name.endswith("table")} == {(23, 23, 16)}
