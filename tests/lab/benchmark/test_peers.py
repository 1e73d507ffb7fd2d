"""Other packages' layers with our weights against ours."""

import pytest
import torch

from lambdanets import LambdaLayer2d
from lambdanets_lab.benchmark import peers
from lambdanets_lab.benchmark.measurement import relative_error


@pytest.mark.parametrize("name", peers.PEERS)
@pytest.mark.parametrize(("training", "stride"), [(True, 1), (False, 1), (True, 2)])
def test_peer_with_our_weights_equals_ours(name, training, stride):
    if peers.installed_version(name) is None:
        pytest.skip(f"{name} is not installed")
    torch.manual_seed(0)
    layer = LambdaLayer2d(16, query_depth=4, heads=2, scope=5, stride=stride, dtype=torch.float64).train(training)
    layer.query_norm.running_var.mul_(2)
    theirs = peers.build_peer(name, layer)
    x = torch.randn(2, 16, 6, 7, dtype=torch.float64)
    assert relative_error(theirs(x), layer(x)) < 1e-12
