"""Export of detectors: the file detects the objects that Mask R-CNN detects."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import lambdanets as ln
from lambdanets.data.coco.images import image_to_tensor
from lambdanets.data.image_search import find_images
from lambdanets.data.images import read_image
from lambdanets.errors import InputError
from lambdanets_lab.export.graphs import missing_objects
from lambdanets_lab.export.runtimes import RUNTIMES

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytest.importorskip("openvino", reason="openvino is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")


@pytest.fixture
def scattered_digits(exported_detector):
    return [image_to_tensor(read_image(path))[None] for path in find_images([str(exported_detector.images)])[0]]


def assert_same_objects(exported, images):
    count = 0
    for image in images:
        expected = exported.graph.run_pytorch(image)
        assert missing_objects(exported.run(image), expected) == 0
        count += len(expected[0])
    assert count >= 10 * len(images)


def test_onnx_detector_of_any_size_detects_the_same_objects(exported_detector, scattered_digits):
    exported = exported_detector.exported
    assert len({shape[2:] for shape in exported.errors}) == 3
    assert_same_objects(exported, scattered_digits)
    assert_same_objects(exported, [nn.functional.interpolate(image, (77, 130)) for image in scattered_digits])
    session = onnxruntime.InferenceSession(exported.path, providers=["CPUExecutionProvider"])
    assert [output.name for output in session.get_outputs()] == ["boxes", "labels", "scores", "masks"]
    metadata = json.loads(session.get_modelmeta().custom_metadata_map["lambdanets"])
    assert tuple(metadata["classes"]) == exported_detector.detector.classes
    assert metadata["images"] == [1, 3, 96, 96]


def test_exported_detector_may_detect_nothing(exported_detector, tmp_path):
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    model = onnx.load(exported_detector.exported.path)
    limits = {node.input[1] for node in model.graph.node if node.op_type == "Greater"}
    constants, threshold = onnx.numpy_helper, np.float32(exported_detector.detector.model.roi_heads.score_thresh)
    candidates = (x for x in model.graph.initializer if x.name in limits)
    (score,) = (x for x in candidates if constants.to_array(x) == threshold)
    score.CopyFrom(constants.from_array(np.float32(1), score.name))
    onnx.save(model, tmp_path / "m.onnx")
    outputs = RUNTIMES["onnx"].open(tmp_path / "m.onnx")(torch.rand(1, 3, 64, 96))
    assert [tuple(output.shape) for output in outputs] == [(0, 4), (0,), (0,), (0, 64, 96)]


def test_openvino_detector_without_hidden_padding_detects_the_same_objects(
    exported_detector, scattered_digits, tmp_path
):
    detector = exported_detector.detector
    card = replace(detector.card, hide_padding=False)
    padded = ln.Detector.build(card, len(card.classes)).eval()
    padded.load_state_dict(detector.model.state_dict())
    padded = ln.Detector(padded, card)
    exported = ln.export(padded, tmp_path / "m.xml", to="openvino", image_size=(64, 128))
    assert_same_objects(exported, [nn.functional.interpolate(image, (64, 128)) for image in scattered_digits])
    with pytest.raises(InputError, match=r"image_size must have multiples of 8 .*, got \(71, 90\)"):
        ln.export(padded, tmp_path / "m.onnx", image_size=(71, 90))
    with pytest.raises(InputError, match="dynamic must be False for a detector with hide_padding=False"):
        ln.export(padded, tmp_path / "m.onnx", dynamic=True)


def test_detector_export_rejects_invalid_arguments(exported_detector, tmp_path):
    for options, message in (
        ({"batch_size": 2}, "batch_size must be 1"),
        ({"to": "aoti"}, "to must be onnx, openvino or"),
    ):
        with pytest.raises(InputError, match=f"{message}.* for a detector, got"):
            ln.export(exported_detector.detector, tmp_path / ("m.pt2" if "to" in options else "m.onnx"), **options)
    assert not list(tmp_path.iterdir())


def make_objects():
    boxes = torch.tensor([[10.0, 10, 50, 40], [60, 20, 90, 50], [5, 60, 25, 90]])
    masks = torch.zeros(3, 96, 96, dtype=torch.bool)
    for mask, (left, top, right, bottom) in zip(masks, boxes.int().tolist(), strict=True):
        mask[top:bottom, left:right] = True
    return [boxes, torch.tensor([1, 2, 1]), torch.tensor([0.9, 0.8, 0.3]), masks]


@pytest.mark.parametrize("index", range(4), ids=["boxes", "labels", "scores", "masks"])
def test_missing_objects_detect_a_difference_in_each_output(index):
    expected, actual = make_objects(), make_objects()
    actual[index] = [actual[0] + 1, 3 - actual[1], actual[2] + 0.01, actual[3].roll(1, 1)][index]
    assert missing_objects(actual, expected) >= 2 / 3
    assert missing_objects([*actual[:2], actual[2] * torch.nan, actual[3]], expected) > 1
