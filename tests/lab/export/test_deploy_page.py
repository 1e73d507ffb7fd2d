"""The code that runs exported files: of docs/deploy.md in Python, and of examples/deploy.cpp."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import torch
from PIL import Image

import lambdanets as ln

ROOT = Path(__file__).parents[3]

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")


def test_python_code_of_deploy_page_classifies_as_predict(shallow_run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/deploy.md").read_text(encoding="utf-8"), re.DOTALL)
    (code,) = (block for block in blocks if "InferenceSession" in block)
    assert "torch" not in code
    ln.export(shallow_run, "model.onnx")
    data = ln.load(shallow_run).card.recipe["data"]
    Image.open(sorted(Path(data).rglob("*.png"))[0]).resize((37, 52)).save("photo.jpg")
    exec(code, variables := {})
    (prediction,) = ln.load(shallow_run, device="cpu").predict("photo.jpg")
    probabilities = torch.from_numpy(variables["logits"][0]).softmax(0)
    torch.testing.assert_close(probabilities, prediction.probabilities, rtol=1e-3, atol=1e-3)
    assert capsys.readouterr().out.splitlines()[-1] == prediction.classes[int(probabilities.argmax())]


@pytest.mark.skipif(
    "ONNXRUNTIME_INCLUDE" not in os.environ,
    reason="needs ONNX Runtime's C++ headers, which its wheel lacks",
)
def test_cpp_example_runs(shallow_run, tmp_path):
    source = ROOT / "examples/deploy.cpp"
    ln.export(shallow_run, tmp_path / "model.onnx")
    (library,) = Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so.*")
    (tmp_path / "libonnxruntime.so").symlink_to(library)
    (tmp_path / "libonnxruntime.so.1").symlink_to(library)
    include = ["-I", os.environ["ONNXRUNTIME_INCLUDE"], "-L."]
    subprocess.run(["g++", "-std=c++17", source, *include, "-lonnxruntime", "-o", "deploy"], cwd=tmp_path, check=True)
    environment = os.environ | {"LD_LIBRARY_PATH": str(tmp_path)}
    run = subprocess.run(["./deploy"], cwd=tmp_path, env=environment, check=True, capture_output=True, text=True)
    assert run.stdout in ("0\n", "1\n")
