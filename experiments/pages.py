"""What all scripts share: where results and pages are, and the sections of pages that they write."""

import argparse
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "experiments/results"
MACHINES = [RESULTS / "xeon-2-cores", RESULTS / "epyc-2-cores"]  # whose speed was measured


def read_results(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


class PageScript(argparse.ArgumentParser):
    """Options of a script that writes a page. doc: the script's docstring. page: name of a file in docs."""

    def __init__(self, doc: str | None, page: str) -> None:
        super().__init__(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
        self.add_argument("--page", type=Path, default=ROOT / "docs" / page, help="page to write from results")


def replace_section(page: Path, script: str, section: str) -> None:
    """Replace the text between the HTML comments of a script. Raises ValueError if the page lacks one, or has several.

    script: its name, without .py.
    """
    begin, end = f"<!-- written by experiments/{script}.py -->\n", f"<!-- end of {script} -->\n"
    text = page.read_text(encoding="utf-8")
    before, found_begin, rest = text.partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found_begin and found_end) or text.count(begin) != 1 or text.count(end) != 1:
        raise ValueError(f"{page} must have the lines {begin.strip()!r} and {end.strip()!r}, each once")
    page.write_text(before + begin + section + end + after, encoding="utf-8")
    print(f"{page}: section {script} is written from the results")
