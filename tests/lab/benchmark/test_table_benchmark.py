"""`lambdanets benchmark tables`, on small images, and its results in `lambdanets tables`."""

import json

import pytest

from lambdanets.cli import main
from lambdanets_lab.benchmark import tables
from lambdanets_lab.benchmark.report import RESULTS
from lambdanets_lab.paper_models import PAPER_MODELS, ModelSpec

QUICK = ["--repeats", "3", "--seconds", "0.01", "--device", "cpu", "--image-size", "32"]


def test_tables_show_the_measured_speeds(tmp_path, capsys):
    out = tmp_path / "speed"
    rows = ["--candidates", "C-C-C-C", "C-C-C-L"]
    arguments = ["benchmark", "tables", "--tables", "12", "13", *rows, "--batch-size", "2", *QUICK]
    assert main([*arguments, "--out", str(out)]) == 0
    results = json.loads((out / RESULTS).read_text())
    assert results["finished"]
    assert [(row["sizes"], row["candidate"]) for row in results["rows"]] == [
        ({"table": "12", "pass": "inference"}, "C-C-C-C"),
        ({"table": "12", "pass": "inference"}, "C-C-C-L"),
    ]
    assert all(row["peak_bytes"] > 2 * 3 * 32 * 32 for row in results["rows"])
    assert all(len(row["seconds"]) in (3, 6, 9) for row in results["rows"])  # noisy rows run again
    header = next(line for line in capsys.readouterr().out.splitlines() if "images/s" in line)
    assert "/ C-C-C-C" in header
    assert "error" not in header
    assert main(["tables", "12", "--measured", str(out / RESULTS)]) == 0
    printed = capsys.readouterr().out
    assert "1.00x the speed of C-C-C-C (paper: 1.00x); batch 2, 32 px, peak" in printed
    assert "x the speed of C-C-C-C (paper: 0.99x); batch 2, 32 px, peak" in printed
    assert "Speeds measured on " in printed


@pytest.mark.parametrize("batch_size", [1, 2])
def test_training_computes_gradients_of_all_parameters(batch_size):
    model = ModelSpec("lambda_resnet20_small").create("cpu")
    prepared = tables._prepare(model.train(), (batch_size, 3, 32, 32), training=True)
    prepared.run()
    assert all(parameter.grad is not None for parameter in model.parameters())
    prepared.release()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_vision_transformers_are_built_for_the_image_size(tmp_path, monkeypatch):
    monkeypatch.setitem(PAPER_MODELS, "5", {"ViT": ModelSpec("vit_tiny_patch16_384", image_size=384)})
    monkeypatch.setattr(tables, "NAMES", ["ViT"])
    out = tmp_path / "out"
    assert main(["benchmark", "tables", "--tables", "5", "--passes", "inference", *QUICK, "--out", str(out)]) == 0
    (row,) = json.loads((out / RESULTS).read_text())["rows"]
    assert row["skip_reason"] is None
