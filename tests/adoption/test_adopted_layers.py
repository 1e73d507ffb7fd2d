"""Each family's layers, adopted: outputs, gradients and running statistics equal those of the original."""

import copy

import pytest
import torch
from timm.layers.lambda_layer import LambdaLayer as TimmLayer
from torch import nn

from adoption.foreign_layers import DLi14, Holocron, Leaderj1001, Lucidrains, TemporalLambdaUNet
from all_pairs import in_turn
from lambdanets import adopt, foreign_state_dict
from lambdanets.adoption.trial import randomize
from lambdanets_lab.benchmark.measurement import relative_error


def timm_layer(**options):
    return TimmLayer(12, dim_head=6, num_heads=3, **options)


SIZES = {"dim_k": 6, "heads": 3}
# (family, function that makes a layer, sides of the map)
LAYERS = {
    "timm local": ("timm", lambda: timm_layer(r=5), (6, 8)),
    "timm local, biases, stride": ("timm", lambda: timm_layer(r=7, qkv_bias=True, stride=2), (6, 8)),
    "timm global": ("timm", lambda: timm_layer(r=None, feat_size=(5, 8)), (5, 8)),
    "timm global, biases": ("timm", lambda: timm_layer(r=None, feat_size=(5, 4), qkv_bias=True), (5, 4)),
    "lucidrains local": ("lucidrains", lambda: Lucidrains(8, 12, u=1, r=5, **SIZES), (6, 8)),
    "lucidrains local, u = 4": ("lucidrains", lambda: Lucidrains(8, 12, u=4, r=5, **SIZES), (7, 5)),
    "lucidrains global": ("lucidrains", lambda: Lucidrains(8, 12, u=1, n=5, **SIZES), (5, 5)),
    "lucidrains global, u = 4": ("lucidrains", lambda: Lucidrains(8, 12, u=4, n=5, **SIZES), (5, 5)),
    "lucidrains pairs, u = 4": ("lucidrains", lambda: Lucidrains(8, 12, u=4, num_positions=24, **SIZES), (4, 6)),
    "ATOMMIC": ("lucidrains", lambda: Lucidrains(8, 12, u=4, r=3, norms=False, sequential=True, **SIZES), (6, 8)),
    "LambdaUNet, slices": ("lucidrains", lambda: TemporalLambdaUNet(8, 12, u=4, r=3, slices=2, **SIZES), (6, 8)),
    "ATOMMIC, slices": (
        "lucidrains",
        lambda: TemporalLambdaUNet(8, 12, u=4, r=3, norms=False, sequential=True, slices=3, **SIZES),
        (6, 8),
    ),
    "d-li14, stride, odd map": ("d-li14", lambda: DLi14(12, dk=6, Nh=3, r=5, stride=2), (7, 9)),
    "d-li14, u = 4, stride": ("d-li14", lambda: DLi14(12, dk=6, du=4, Nh=3, r=7, stride=2), (6, 8)),
    "leaderj1001": ("leaderj1001", lambda: Leaderj1001(8, 12, k=6, u=1, heads=3, m=5), (6, 8)),
    "leaderj1001, pool": ("leaderj1001", lambda: Leaderj1001(8, 12, k=6, u=1, heads=3, m=5, stride=2), (6, 8)),
    "leaderj1001, no scope, u = 4": ("leaderj1001", lambda: Leaderj1001(8, 12, k=6, u=4, heads=3, m=0), (6, 8)),
    "Telefonica 1-D": ("leaderj1001", lambda: Leaderj1001(8, 12, k=6, u=1, heads=3, m=5, dimensions=1), (11,)),
    "Holocron": ("Holocron", lambda: Holocron(8, 12, u=1, r=5, **SIZES), (6, 8)),
    "Holocron, u = 4": ("Holocron", lambda: Holocron(8, 12, u=4, r=5, **SIZES), (6, 8)),
    "Holocron pairs, u = 4": ("Holocron", lambda: Holocron(8, 12, u=4, num_positions=24, **SIZES), (4, 6)),
}


def make_pair(name, dtype):
    family, make_layer, size = LAYERS[name]
    torch.manual_seed(0)
    theirs = nn.Sequential(randomize(make_layer())).to(dtype)
    ours = copy.deepcopy(theirs)
    with torch.device("meta"):  # the caller's default device does not matter
        # Holocron's layer is lucidrains' first version: at u = 1 both families recognize it
        assert adopt(ours)["0"] in {family, "lucidrains" if "Holocron" in name else family}
    projection = next(module for module in theirs.modules() if isinstance(module, nn.Conv1d | nn.Conv2d))
    return theirs, ours, torch.randn(6 if "slices" in name else 2, projection.in_channels, *size, dtype=dtype)


@pytest.mark.parametrize(
    ("name", "training", "dtype"), in_turn(LAYERS, (False, True), (torch.float64, torch.float32)), ids=str
)
def test_adopted_layer_equals_the_original(name, training, dtype):
    theirs, ours, x = make_pair(name, dtype)
    outputs, gradients = [], []
    for network in (theirs.train(training), ours.train(training)):
        inputs = x.clone().requires_grad_()
        output = network(inputs)
        weights = torch.linspace(-1, 1, output.numel(), dtype=dtype).view_as(output)
        (output.square() * weights).sum().backward()
        outputs.append(output.detach())
        gradients.append(inputs.grad)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    assert relative_error(*reversed(outputs)) < tolerance
    assert relative_error(*reversed(gradients)) < tolerance
    # converts our gradients to the original's state-dict keys, in place of the weights
    for parameter in ours.parameters():
        parameter.data = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    converted = foreign_state_dict(ours)
    for key, parameter in theirs.named_parameters():
        has_folded_bias = "slices" in name and "conv.bias" in key
        if key != "0.qkv.bias" and not has_folded_bias:  # returned unchanged
            assert relative_error(converted[key], parameter.grad) < tolerance, key
    for key, expected in theirs.state_dict().items():
        if "running" in key:
            assert relative_error(converted[key], expected) < tolerance
        elif "tracked" in key:
            assert converted[key] == expected == int(training)


@pytest.mark.parametrize("name", LAYERS)
def test_weights_convert_back_to_the_same_state_dict(name):
    theirs, ours, _ = make_pair(name, torch.float64)
    converted = foreign_state_dict(ours)
    assert list(converted) == list(theirs.state_dict())
    for key, expected in theirs.state_dict().items():
        torch.testing.assert_close(converted[key], expected, rtol=0, atol=1e-15 if "running_mean" in key else 0)
