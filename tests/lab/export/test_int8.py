"""Export of classifiers to int8: accuracy is measured."""

import re
import signal

import pytest
import torch
from torch import nn

import lambdanets as ln
from lambdanets.cli import main
from lambdanets.errors import InputError
from lambdanets_lab.export import export as export_module

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("nncf", reason="nncf is not installed")


@pytest.fixture(scope="module")
def classifier(shallow_run):
    return ln.load(shallow_run, device="cpu")


def test_int8_onnx_classifier_is_as_accurate_and_smaller(classifier, tmp_path):
    exported = ln.export(
        classifier, tmp_path / "m.onnx", int8=classifier.card.recipe["data"], dynamic=True, batch_size=32
    )
    result, evaluation = exported.quantization, ln.evaluate(classifier)
    assert (evaluation.top1, len(evaluation.labels)) == (1, result.images)
    assert result.float_accuracy == pytest.approx(evaluation.top1, abs=0.003)
    assert result.accuracy >= result.float_accuracy - 0.005
    assert exported.path.stat().st_size < result.float_bytes / 2
    model = onnx.load(exported.path)
    assert "QuantizeLinear" in {node.op_type for node in model.graph.node}
    assert "lambdanets" in {entry.key for entry in model.metadata_props}
    channels = classifier.card.preprocessing.channels
    (logits,) = exported.run(torch.randn(3, channels, 20, 15))
    assert logits.shape == (3, len(classifier.classes))


def test_command_reports_the_accuracy_of_int8_openvino(shallow_run, classifier, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    data = classifier.card.recipe["data"]
    assert main(["export", str(shallow_run), "--to", "openvino", "--int8", data, "--seconds", "0"]) == 0
    assert re.search("int8: top-1 accuracy .* validation images; float32 file", capsys.readouterr().out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.bin", "model.xml"]


def test_int8_that_loses_accuracy_is_not_kept(classifier, tmp_path, monkeypatch):
    monkeypatch.setattr(export_module, "MAX_DROP", -0.1)
    with pytest.raises(InputError, match=r"int8 must have a top-1 of at least .* got \d\.\d{4}; no file was written"):
        ln.export(classifier, tmp_path / "m.xml", to="openvino", int8=classifier.card.recipe["data"])
    assert not list(tmp_path.iterdir())
    received = []
    previous = signal.signal(signal.SIGUSR1, lambda *_: received.append(True))
    signal.raise_signal(signal.SIGUSR1)  # crashes if OpenVINO's signal stack is still set
    signal.signal(signal.SIGUSR1, previous)
    assert received


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("m.pt2", {"to": "pt2"}, "to for int8 must be one of onnx, openvino, got 'pt2'"),
        ("m.xml", {"to": "openvino", "dynamic": True}, "dynamic must be False for int8 with openvino"),
        ("m.onnx", {"int8": "missing"}, "missing"),
        ("m.onnx", {"image_size": 64}, r"image_size must be \d+ for int8, .*, got \(64, 64\)"),
    ],
)
def test_int8_rejects_unsupported_formats_models_and_data(name, options, message, classifier, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        ln.export(classifier, name, **{"int8": classifier.card.recipe["data"]} | options)
    with pytest.raises(InputError, match="model must be a classifier for int8, got Conv2d"):
        ln.export(nn.Conv2d(3, 3, 1), "m.onnx", int8=classifier.card.recipe["data"], image_size=8)
    assert not list(tmp_path.iterdir())
