"""What a detector's backbone can be made of: twins with and without excitation."""

import pytest
import torch

from lambdanets.evidence.tables.rows import ROWS
from lambdanets.models.mask_rcnn import mask_rcnn

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
