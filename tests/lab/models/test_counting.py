"""FLOP counts of lambda layers, as in the paper."""

import torch

from lambdanets import LambdaLayer2d
from lambdanets_lab.models.counting import count_flops


def test_flops_count_separate_or_single_applications():
    with torch.device("meta"):
        layer = LambdaLayer2d(64, query_depth=8, heads=2, scope=31).eval()
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 1, bias=False), layer)
    projections = 2 * 256 * (3 * 64 + 64 * (2 * 8 + 8 + 32))
    lambdas = 2 * 256 * 256 * 8 * 32 + 2 * 256 * 8 * 32  # of positions, and of the content
    application = 2 * 256 * 2 * 8 * 32
    once = projections + lambdas + application
    assert count_flops(model, 16, single_application=True) == once
    assert count_flops(model, 16) == once + application


def test_flops_of_a_scope_are_those_of_the_positions_that_it_can_reach():
    def flops(**options):
        with torch.device("meta"):
            return count_flops(LambdaLayer2d(3, heads=1, **options), 14)

    assert flops(scope=(3, 29)) == flops(scope=(3, 14 | 1)) < flops(scope=(5, 15))
    assert flops(scope=23, dilation=2) == flops(scope=7)
