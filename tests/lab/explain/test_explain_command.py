"""`lambdanets explain` writes figures and numbers, and reports errors in one line."""

import numpy as np
import pytest
from PIL import Image

import lambdanets as ln
from lambdanets.cli import main
from training.detection.constructed_detector import write_constructed_detector

FILES = ["attention.png", "explanation.npz", "keys.png", "receptive_field.png", "shares.png"]


@pytest.fixture
def image(tmp_path):
    path = tmp_path / "image.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 50, 3), np.uint8)).save(path)
    return path


@pytest.mark.figures
def test_command_writes_figures_and_numbers(quick_run, image, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["explain", str(quick_run), str(image), "--at", "3", "12", "--out", str(out)]) == 0
    assert sorted(path.name for path in out.iterdir() if path.name != ".lock") == FILES
    for path in out.glob("*.png"):
        with Image.open(path) as figure:
            assert min(figure.size) > 200
            assert len(np.unique(np.asarray(figure.convert("L")))) > 50
    explanation = ln.explain(quick_run, image)
    attention = explanation.attention_map(at=(3, 12))
    with np.load(out / "explanation.npz") as numbers:
        np.testing.assert_allclose(numbers["content"], attention.content, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(numbers["position"], attention.position, rtol=1e-4, atol=1e-5)
        assert tuple(numbers["at"]) == attention.at
        assert {f"share/{name}" for name in explanation.layers} < set(numbers.files)
    output = capsys.readouterr().out
    assert all(name in output for name in (*explanation.layers, "position share", *FILES))


def test_command_explains_detectors(image, tmp_path, capsys):
    write_constructed_detector(tmp_path)
    out = tmp_path / "out"
    assert main(["explain", str(tmp_path / "initial.safetensors"), str(image), "--out", str(out)]) == 0
    assert "pixel 15, 25" in capsys.readouterr().out
    assert np.load(out / "explanation.npz")["gradient"].shape == (30, 50)


def test_invalid_options_are_errors_without_a_folder(quick_run, image, tmp_path, capsys):
    assert main(["explain", str(quick_run), str(image), "--out", str(tmp_path / "out"), "--at", "0", "0"]) == 2
    error = capsys.readouterr().err
    assert "at must be in the center crop that the model sees" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()
