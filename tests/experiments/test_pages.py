"""Every section and page that a script writes is that of the committed results."""

import re

import pytest

from scripts import ROOT, call_main, load_script

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SECTION = re.compile(r"(<!-- written by experiments/(\w+)\.py -->\n)(.*?)(<!-- end of \w+ -->\n)", re.DOTALL)
SCRIPTS = sorted({script for page in PAGES for _, script, *_ in SECTION.findall(page.read_text(encoding="utf-8"))})


@pytest.mark.parametrize("script", SCRIPTS)
def test_script_reproduces_what_is_committed(script, tmp_path, monkeypatch):
    pages = [page for page in PAGES if f"written by experiments/{script}.py" in page.read_text(encoding="utf-8")]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        emptied = SECTION.sub(lambda match: match[1] + match[4] if match[2] == script else match[0], text)
        (tmp_path / page.name).write_text(emptied, encoding="utf-8")
    module = load_script(f"experiments/{script}.py")
    options = ["--readme", tmp_path / "README.md"] if len(pages) > 1 else []
    call_main(module, monkeypatch, "--page", tmp_path / pages[-1].name, *options)
    for page in pages:
        assert (tmp_path / page.name).read_text(encoding="utf-8") == page.read_text(encoding="utf-8")
    for figure in tmp_path.rglob("*.png"):
        assert (ROOT / "docs" / figure.relative_to(tmp_path)).is_file()
