"""Detection backbones with and without squeeze-and-excitation (Table 13 of the paper)."""

import pytest
import torch

from lambdanets.models.mask_rcnn import mask_rcnn
from lambdanets_lab.paper_models import PAPER_MODELS

RESNETS = {row: build for row, build in PAPER_MODELS["13"].items() if row.startswith("ResNet")}


@pytest.mark.parametrize("row", RESNETS)
def test_backbones_with_and_without_se_match_table_13_parameters(row):
    build = RESNETS[row]
    expected = sum(weight.numel() for name, weight in build.create().named_parameters() if not name.startswith("fc."))
    with torch.device("meta"):
        model = mask_rcnn(build.name, 90, backbone_options=build.overrides)
    network = model.backbone.network
    assert sum(weight.numel() for weight in network.parameters()) == expected
    assert any(".se." in name for name, _ in network.named_parameters()) == row.endswith("w/ SE")
    assert model.backbone.strides == (4, 8, 16, 32, 64)
