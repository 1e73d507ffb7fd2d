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
