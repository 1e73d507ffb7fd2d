"""Parameter and FLOP counts, against the paper and PyTorch."""

import pytest
import timm
import torch
from torch.utils.flop_counter import FlopCounterMode

from lambdanets import LambdaLayer2d
from lambdanets_lab.models.counting import count_flops


@pytest.mark.parametrize("name", ["resnet50", "seresnet50", "mobilenetv2_100", "efficientnet_b0"])
def test_flops_of_convolutions_and_linear_layers_match_pytorch(name):
    with torch.device("meta"):
        model = timm.create_model(name).eval()
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(torch.empty(1, 3, 160, 160))
    assert count_flops(model, 160) == counter.get_total_flops()


def test_flops_count_separate_or_single_applications():
    with torch.device("meta"):
        layer = LambdaLayer2d(64, query_depth=8, heads=2, scope=31).eval()
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 1, bias=False), layer)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model[0](torch.empty(1, 3, 16, 16))
    projections = 2 * 256 * 64 * (2 * 8 + 8 + 32)
    lambdas = 2 * 256 * 256 * 8 * 32 + 2 * 256 * 8 * 32  # of positions, and of the content
    application = 2 * 256 * 2 * 8 * 32
    once = counter.get_total_flops() + projections + lambdas + application
    assert count_flops(model, 16, single_application=True) == once
    assert count_flops(model, 16) == once + application


def test_flops_count_transposed_convolutions_and_dilated_scopes():
    def flops(*layers, side):
        with torch.device("meta"):
            return count_flops(torch.nn.Sequential(*(make() for make in layers)), side)

    def convolution():
        return torch.nn.Conv2d(3, 4, 1, bias=False)

    transposed = flops(convolution, lambda: torch.nn.ConvTranspose2d(4, 6, 2, 2), side=8)
    assert transposed == 2 * 64 * (3 * 4 + 4 * 6 * 4)
    dilated = flops(lambda: LambdaLayer2d(3, heads=1, scope=23, dilation=2), side=14)
    assert dilated == flops(lambda: LambdaLayer2d(3, heads=1, scope=7), side=14)
