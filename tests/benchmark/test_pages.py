import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_committed_page_is_what_the_script_writes(tmp_path):
    page = tmp_path / "scale.md"
    subprocess.run([sys.executable, str(ROOT / "benchmarks/scale.py"), "--page", str(page)], check=True)
    assert page.read_text(encoding="utf-8") == (ROOT / "docs/scale.md").read_text(encoding="utf-8")
