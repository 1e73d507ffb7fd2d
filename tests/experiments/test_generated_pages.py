import json
import sys

import pytest

from scripts import ROOT, load_script

RESULTS = ROOT / "experiments/results/epyc-2-cores"


@pytest.mark.parametrize(("script", "page"), [("scale", "scale"), ("noisy_student", "pseudo_labels")])
def test_script_reproduces_the_committed_page(script, page, tmp_path, monkeypatch):
    page_file = tmp_path / "page.md"
    monkeypatch.setattr(sys, "argv", [script, "--page", str(page_file)])
    load_script(f"experiments/{script}.py").main()
    assert page_file.read_text(encoding="utf-8") == (ROOT / f"docs/{page}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("script", "page", "options"),
    [("coco_overfit", "detection", ()), ("kills", "faults", ("--out", RESULTS.parent / "xeon-2-cores/kills.json"))],
)
def test_script_reproduces_the_committed_section(script, page, options, tmp_path, monkeypatch):
    committed = (ROOT / f"docs/{page}.md").read_text(encoding="utf-8")
    module = load_script(f"experiments/{script}.py")
    before, _, rest = committed.partition(module.BEGIN)
    section, _, after = rest.partition(module.END)
    assert before
    assert after
    (tmp_path / "page.md").write_text(before + module.BEGIN + module.END + after, encoding="utf-8")
    monkeypatch.setattr(sys, "argv", [script, "--page", str(tmp_path / "page.md"), *map(str, options)])
    module.main()
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == committed
    assert section.count("\n") >= 3


def test_inconsistent_results_write_no_page():
    coco = load_script("experiments/coco_overfit.py")
    coco_result = json.loads((RESULTS / "coco_overfit.json").read_text(encoding="utf-8"))
    with pytest.raises(ValueError, match="scores must equal"):
        coco.section(coco_result | {"largest_difference": {"pycocotools": 1e-5}})
