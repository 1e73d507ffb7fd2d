"""The code of docs/deploy.md runs."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from PIL import Image

import lambdanets as ln

PAGE = Path(__file__).parents[3] / "docs/deploy.md"
TEXT = PAGE.read_text(encoding="utf-8")
EXPORT, DEPLOYED, DETECTOR, DECODING = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")


def test_python_code_of_deploy_page_runs(shallow_run, tmp_path, monkeypatch, capsys):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/mine").symlink_to(shallow_run)
    monkeypatch.chdir(tmp_path)
    exec(EXPORT, variables := {})
    assert max(variables["exported"].errors.values()) < 1e-5
    assert "torch" not in DEPLOYED
    data = variables["ln"].load(shallow_run).card.source.data
    image = Image.open(sorted(Path(data).rglob("*.png"))[0]).resize((37, 52))
    image.save("image.png")
    exec(DEPLOYED, deployed := {})
    (prediction,) = ln.load(shallow_run, device="cpu").predict("image.png")
    probabilities = torch.from_numpy(deployed["logits"][0]).softmax(0)
    torch.testing.assert_close(probabilities, prediction.probabilities, rtol=1e-3, atol=1e-3)
    assert capsys.readouterr().out.splitlines()[-1] == prediction.classes[int(probabilities.argmax())]


def test_detector_code_of_deploy_page_runs(exported_detector, tmp_path, monkeypatch, capsys):
    shutil.copy(next((exported_detector.images / "val").iterdir()), tmp_path / "image.png")
    monkeypatch.chdir(tmp_path)
    # reuses the fixture's file, which was exported with the same arguments, because the export is slow
    exports = {("runs/nuclei", "detector.onnx", True): exported_detector.exported}
    monkeypatch.setattr(ln, "export", lambda model, path, *, dynamic: exports[model, path, dynamic])
    exec(DETECTOR, {})
    assert capsys.readouterr().out == "0.0\n"


def test_decoding_code_of_deploy_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(DECODING, {})
    session = onnxruntime.InferenceSession("step.onnx", providers=["CPUExecutionProvider"])
    assert [x.name for x in session.get_inputs()] == ["x", "position", "values", "maxima", "norms", "sums"]
    assert [x.name for x in session.get_outputs()][:2] == ["y", "next_position"]


@pytest.mark.skipif(
    "ONNXRUNTIME_INCLUDE" not in os.environ,
    reason="needs ONNX Runtime's C++ headers, which its wheel lacks",
)
def test_cpp_code_of_deploy_page_runs(shallow_run, tmp_path):
    (code,) = re.findall(r"```cpp\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "deploy.cpp").write_text(code)
    ln.export(shallow_run, tmp_path / "model.onnx")
    (library,) = Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so.*")
    (tmp_path / "libonnxruntime.so").symlink_to(library)
    (tmp_path / "libonnxruntime.so.1").symlink_to(library)
    include = ["-I", os.environ["ONNXRUNTIME_INCLUDE"], "-L."]
    subprocess.run(
        ["g++", "-std=c++17", "deploy.cpp", *include, "-lonnxruntime", "-o", "deploy"], cwd=tmp_path, check=True
    )
    environment = os.environ | {"LD_LIBRARY_PATH": str(tmp_path)}
    run = subprocess.run(["./deploy"], cwd=tmp_path, env=environment, check=True, capture_output=True, text=True)
    assert run.stdout in ("0\n", "1\n")
