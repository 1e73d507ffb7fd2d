"""What a detector's backbone can be made of, and taken out to: twins with and without excitation, ONNX."""

import io

import pytest
import torch

from lambdanets.models.mask_rcnn import mask_rcnn
from lambdanets.reproduction.rows import ROWS
from models.perturbed import perturbed

TWINS = {row: build for row, build in ROWS["13"].items() if row.startswith("ResNet")}


@pytest.mark.parametrize("row", TWINS)
def test_a_twin_with_and_without_excitation_is_a_backbone_of_as_many_parameters_as_the_paper_s_row(row):
    build = TWINS[row]
    whole = sum(weight.numel() for name, weight in build.create().named_parameters() if not name.startswith("fc."))
    with torch.device("meta"):
        model = mask_rcnn(build.name, 90, backbone_options=build.overrides)
    network = model.backbone.network
    assert sum(weight.numel() for weight in network.parameters()) == whole
    assert any(".se." in name for name, _ in network.named_parameters()) == row.endswith("w/ SE")
    assert model.backbone.strides == (4, 8, 16, 32, 64)


def test_a_pyramid_in_onnx_runtime_gives_the_same_maps_at_a_size_that_is_not_square():
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    torch.manual_seed(0)
    backbone = mask_rcnn("lambda_resnet20_small", 2, pyramid_channels=16, box_layers=(1, 32), mask_layers=1).backbone
    backbone = perturbed(backbone).float()
    images = torch.rand(1, 3, 48, 80)
    program = torch.onnx.export(torch.export.export(backbone, (images,)), dynamo=True, verbose=False)
    file = io.BytesIO()
    program.save(file)
    session = runtime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    others = torch.rand(1, 3, 48, 80)  # not those it was traced with
    with torch.no_grad():
        maps = backbone(others)
    found = session.run(None, {session.get_inputs()[0].name: others.numpy()})
    assert len(found) == len(maps) == 5
    for one, other in zip(found, maps.values(), strict=True):
        torch.testing.assert_close(torch.from_numpy(one), other, rtol=1e-3, atol=1e-4)
