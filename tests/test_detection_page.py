"""The Python of docs/detection.md."""

import json
import re
from pathlib import Path

import pytest
import torch
from PIL import Image

from lambdanets.recipes.detection import digits

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/detection.md"


def test_scores_of_scattered_digits_match_the_published_run():
    kept = json.loads((ROOT / "experiments/results/epyc-2-cores/scattered_digits.json").read_text(encoding="utf-8"))
    boxes, masks = ([f"{kept[kind][name]:.2f}" for name in ("AP", "AP50")] for kind in ("bbox", "segm"))
    said = (
        f"boxes reach AP {boxes[0]} and AP50 {boxes[1]}, masks {masks[0]} and {masks[1]}, after {kept['epochs']} epochs"
    )
    assert said in " ".join(PAGE.read_text(encoding="utf-8").split())
    assert f"mask AP50 {100 * kept['segm']['AP50']:.0f}%" in digits.__doc__
    assert f"{kept['seconds'] / 60:.0f} minutes" in digits.__doc__


def test_python_of_the_page_detects_objects_and_exports_to_onnx(trained_detector, tmp_path, monkeypatch, capsys):
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/objects").symlink_to(trained_detector / "run")
    image = sorted((trained_detector / "digits/train").iterdir())[1]
    Image.open(image).save(tmp_path / "photo.png")
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict = {}
    exec(code, names)
    assert all(len(getattr(names["found"], what)) for what in ("boxes", "labels", "scores", "masks"))
    assert sum(line.endswith("]") for line in capsys.readouterr().out.splitlines()) >= len(names["found"])
    session = runtime.InferenceSession("pyramid.onnx", providers=["CPUExecutionProvider"])
    images = torch.rand_like(names["images"])  # not those of the trace
    with torch.no_grad():
        maps = names["pyramid"](images)
    found = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    assert len(found) == len(maps) == 3
    for actual, expected in zip(found, maps.values(), strict=True):
        torch.testing.assert_close(torch.from_numpy(actual), expected, rtol=1e-3, atol=1e-4)
