"""docs/comparison.md and its pictures, from the results of `lambdanets compare`.

python benchmarks/comparison.py [--out FOLDER] reads benchmarks/results; people who read them wrote the paragraphs.
"""

import argparse
from pathlib import Path
from typing import Any

from lambdanets.comparison.summary import described, draw_all, read_summary, table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results/xeon-2-cores/fashion_mnist.json"
COMMAND = "lambdanets compare all fashion_mnist --data FOLDER --training-images 12000 --epochs 1"

OPENING = """\
"""

PARAGRAPHS: dict[str, str] = {}

CLOSING = """\
"""


def page(summary: dict[str, Any]) -> str:
    """The document: a section a study, its picture, its table and what it says."""
    parts = ["# Rivals, trained alike", OPENING.strip().format(command=COMMAND, setup=described(summary))]
    for name, study in summary["studies"].items():
        parts += [f"## {study['question']}", f"![{study['question']}](comparison/{name}.png)"]
        parts += [table(study), PARAGRAPHS[name]]
    return "\n\n".join([*parts, CLOSING.strip()]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs")
    out = parser.parse_args().out
    summary = read_summary(RESULTS)
    (out / "comparison").mkdir(parents=True, exist_ok=True)
    (out / "comparison.md").write_text(page(summary), encoding="utf-8")
    draw_all(summary, out / "comparison")


if __name__ == "__main__":
    main()
