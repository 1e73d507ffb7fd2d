"""The Python code of docs/deploy.md runs."""

import re
import sys
from pathlib import Path

import pytest

from scripts import load_script

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


def test_speed_table_is_that_of_the_committed_results(tmp_path, monkeypatch):
    page = tmp_path / "deploy.md"
    page.write_text(PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    script = load_script("experiments/exported_networks.py")
    monkeypatch.setattr(sys, "argv", ["exported_networks.py", "--page", str(page)])
    script.main()
    assert page.read_text(encoding="utf-8") == PAGE.read_text(encoding="utf-8")
