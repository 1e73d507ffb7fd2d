"""Export to int8: accuracy is measured, and layers are reverted to float32 to restore it."""

import os
import signal

import pytest
import torch
from torch import nn

import lambdanets as ln
from lambdanets.cli import main
from lambdanets.errors import InputError
from lambdanets.inference.detector import DetectionEvaluator
from lambdanets_lab.export import export as export_module
from lambdanets_lab.export import quantization
from lambdanets_lab.export.accuracy import open_validation_data
from lambdanets_lab.export.runtimes import RUNTIMES
from training.detection.constructed_detector import write_constructed_detector

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("nncf", reason="nncf is not installed")


@pytest.fixture(scope="module")
def classifier(shallow_run):
    return ln.load(shallow_run, device="cpu")


def test_int8_onnx_classifier_is_as_accurate_and_smaller(classifier, tmp_path):
    exported = ln.export(
        classifier, tmp_path / "m.onnx", int8=classifier.card.recipe["data"], dynamic=True, batch_size=32
    )
    result = exported.quantization
    assert ln.evaluate(classifier).top1 == 1
    assert result.metric == "top-1 accuracy"
    assert result.images == len(ln.evaluate(classifier).labels)
    assert result.float_accuracy == pytest.approx(ln.evaluate(classifier).top1, abs=0.003)
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
    output = capsys.readouterr().out
    assert "int8: top-1 accuracy" in output
    assert "validation images; float32 file" in output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.bin", "model.xml"]


class LogitsAgreement:
    """Random validation images; the accuracy is 1 minus the relative error of the logits to those in float32."""

    metric = "agreement"

    def __init__(self, network):
        self.data = torch.randn(8, 1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
        with torch.inference_mode():
            self.expected = [network(images) for images in self.data]

    def __len__(self):
        return len(self.data)

    def calibration(self):
        return list(self.data)

    def accuracy(self, run, indices):
        pairs = [(run(self.data[i])[0], self.expected[i]) for i in indices]
        values = [float(1 - (actual - expected).norm() / expected.norm()) for actual, expected in pairs]
        return sum(values) / len(values), values


@pytest.mark.parametrize("file_format", ["onnx", "openvino"])
def test_layers_are_reverted_to_float32_until_accuracy_is_restored(file_format, tmp_path, monkeypatch):
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.ReLU(), ln.LambdaLayer2d(16), nn.Conv2d(16, 8, 3), nn.Flatten(), nn.Linear(1152, 10)
    ).eval()
    exported = ln.export(network, tmp_path / f"m{RUNTIMES[file_format].suffix}", to=file_format, image_size=16)
    validation = LogitsAgreement(network)
    monkeypatch.setattr(quantization, "MAX_DROP", 0.002)
    float_layers = RUNTIMES[file_format].quantize(exported.path, validation)
    assert float_layers
    assert any(layer.startswith("network.") for layer in float_layers)
    agreement, _ = validation.accuracy(RUNTIMES[file_format].open(exported.path), range(len(validation)))
    assert 0.998 <= agreement < 1
    assert signal_is_handled()  # crashes if OpenVINO's signal stack is still set


def test_signals_are_handled_after_openvino_networks_are_deleted(tmp_path):
    network = nn.Conv2d(3, 2, 1)
    runs = [ln.export(network, tmp_path / f"{i}.xml", to="openvino", image_size=8).run for i in range(2)]
    while runs:
        runs.pop(0)
        assert signal_is_handled()


def signal_is_handled():
    received = []
    previous = signal.signal(signal.SIGUSR1, lambda *_: received.append(True))
    os.kill(os.getpid(), signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, previous)
    return bool(received)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("m.pt2", {"to": "pt2"}, "to must be onnx or openvino for int8, got pt2"),
        ("m.xml", {"to": "openvino", "dynamic": True}, "dynamic must be False for int8 with openvino"),
        ("m.onnx", {"int8": "missing"}, "missing"),
    ],
)
def test_int8_rejects_unsupported_formats_models_and_data(name, options, message, classifier, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        ln.export(classifier, name, **{"int8": classifier.card.recipe["data"]} | options)
    with pytest.raises(InputError, match="model must be a classifier or a detector for int8, got Conv2d"):
        ln.export(nn.Conv2d(3, 3, 1), "m.onnx", int8=classifier.card.recipe["data"], image_size=8)
    assert not list(tmp_path.iterdir())


def test_detector_accuracy_is_that_of_evaluate(tmp_path):
    pytest.importorskip("faster_coco_eval", reason="faster_coco_eval is not installed")
    write_constructed_detector(tmp_path)
    detector = ln.load(tmp_path / "initial.safetensors", device="cpu")
    validation = detector.open_images()
    expected = DetectionEvaluator(detector, validation).evaluate().scores.summary()["segm"]["AP"]
    graph = export_module.make_graph(detector, None, 1)
    validation = open_validation_data(detector, str(tmp_path / "digits/train"), graph.shape, dynamic=True)
    accuracy, by_image = validation.accuracy(graph.run_pytorch, range(len(validation)))
    assert accuracy == pytest.approx(expected, abs=0.01)
    assert len(by_image) == len(validation)
    assert all(image.ndim == 4 and max(image.shape[2:]) == 96 for image in validation.calibration())
    padded = open_validation_data(detector, str(tmp_path / "digits/train"), (1, 3, 96, 128), dynamic=False)
    assert {image.shape for image in padded.calibration()} == {(1, 3, 96, 128)}
