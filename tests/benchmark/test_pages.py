import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("script", "page"), [("scale", "scale"), ("noisy_student", "pseudo_labels")])
def test_the_committed_page_is_what_the_script_writes(script, page, tmp_path):
    written = tmp_path / "page.md"
    subprocess.run([sys.executable, str(ROOT / f"benchmarks/{script}.py"), "--page", str(written)], check=True)
    assert written.read_text(encoding="utf-8") == (ROOT / f"docs/{page}.md").read_text(encoding="utf-8")


def test_the_scores_on_coco_s_images_are_those_of_the_committed_result():
    result = json.loads((ROOT / "benchmarks/results/epyc-2-cores/coco_overfit.json").read_text(encoding="utf-8"))
    page = " ".join((ROOT / "docs/detection.md").read_text(encoding="utf-8").split())
    assert f"{result['images']} training images of COCO with {result['objects']} objects" in page
    assert f"box AP50 {result['bbox']['AP50']:.2f}, mask AP50 {result['segm']['AP50']:.2f}" in page
    assert max(result["largest_difference"].values()) < 1e-6
