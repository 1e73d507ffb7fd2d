"""The Python code of docs/deploy.md runs."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs/deploy.md"


def test_python_code_of_deploy_page_runs(quick_run, tmp_path, monkeypatch, capsys):
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/mine").symlink_to(quick_run)
    monkeypatch.chdir(tmp_path)
    exporting, deployed = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    exec(exporting, variables := {})
    assert max(variables["exported"].errors.values()) < 1e-5
    assert "torch" not in deployed
    exec(deployed, variables := {})
    assert capsys.readouterr().out.splitlines()[-1] in variables["metadata"]["classes"]
