"""The Python code of docs/explain.md runs."""

import re
import shutil
from pathlib import Path

import lambdanets as ln

PAGE = Path(__file__).parents[3] / "docs/explain.md"


def test_python_code_of_explain_page_runs(quick_run, two_classes, tmp_path, monkeypatch, capsys):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/mine").symlink_to(quick_run)
    shutil.copy(sorted((two_classes / "dark").iterdir())[0], tmp_path / "scan.png")
    monkeypatch.chdir(tmp_path)
    first, second = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    height, width = ln.explain("runs/mine", "scan.png").view.image_size
    exec(first.replace("at=(30, 45)", f"at=({height // 3}, {width // 2})"), variables := {})
    assert variables["share"].ndim == 2
    assert len(variables["field"].box) == 2
    exec(second, {})
    assert "AttentionMap(layer3.1.conv2, at=(" in capsys.readouterr().out
