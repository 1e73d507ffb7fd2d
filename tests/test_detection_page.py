"""The Python code of docs/detection.md and docs/segmentation.md runs."""

import re
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

from lab.export.shallow_resnet import shallow_lambda_resnet
from training.detection.constructed_detector import write_constructed_detector

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/detection.md"


def test_python_code_detects_objects_and_exports_to_onnx(tmp_path, monkeypatch, capsys):
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    write_constructed_detector(tmp_path, model=shallow_lambda_resnet.__name__)
    (tmp_path / "runs/objects").mkdir(parents=True)
    (tmp_path / "initial.safetensors").rename(tmp_path / "runs/objects/weights.safetensors")
    image = sorted((tmp_path / "digits/train").iterdir())[1]
    Image.open(image).save(tmp_path / "photo.png")
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    variables: dict = {}
    exec(code, variables)
    assert all(len(getattr(variables["detections"], field)) for field in ("boxes", "labels", "scores", "masks"))
    assert sum(line.endswith("]") for line in capsys.readouterr().out.splitlines()) >= len(variables["detections"])
    session = runtime.InferenceSession("pyramid.onnx", providers=["CPUExecutionProvider"])
    images = torch.rand(1, 3, 256, 384)
    with torch.no_grad():
        maps = variables["detector"].model.backbone(images)
    outputs = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    assert len(outputs) == len(maps) == 3
    for actual, expected in zip(outputs, maps.values(), strict=True):
        torch.testing.assert_close(torch.from_numpy(actual), expected, rtol=1e-3, atol=1e-4)


def test_python_code_of_segmentation_page_segments_a_photo(trained_segmenter, tmp_path, monkeypatch, capsys):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/regions").symlink_to(trained_segmenter / "run")
    shutil.copy(sorted((trained_segmenter / "digits/train").iterdir())[0], tmp_path / "photo.png")
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs/segmentation.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    variables: dict = {}
    exec(code, variables)
    assert [line.rpartition(" ")[0] for line in capsys.readouterr().out.splitlines()[-3:]] == [
        *variables["segmentation"].classes
    ]
    assert variables["model"].num_classes == 3
