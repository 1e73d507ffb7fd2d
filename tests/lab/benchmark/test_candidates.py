"""Attention against its equation; other packages' layers with our weights against ours; missing packages."""

import pytest
import torch

from lambdanets import LambdaLayer2d
from lambdanets_lab.benchmark import attention, peers
from lambdanets_lab.benchmark.measurement import relative_error


@pytest.mark.parametrize("causal", [False, True])
def test_relative_bias_depends_on_the_offset(causal):
    table = torch.randn(2, 3, 5)
    bias = attention.relative_bias(table, (3, 4), causal=causal)
    for n in range(12):
        for m in range(12):
            rows, columns = m // 4 - n // 4, m % 4 - n % 4
            inside = abs(rows) <= 1 and abs(columns) <= 2 and not (causal and m > n)
            expected = table[:, rows + 1, columns + 2] if inside else torch.full((2,), -torch.inf)
            assert bias[:, n, m].equal(expected)


def reference_output(layer, sizes, x):
    exact = attention.ReferenceAttention(*sizes).double()
    exact.load_state_dict(layer.state_dict())
    return exact(x.double())


@pytest.mark.parametrize(("scope", "training"), [(3, True), (3, False), (23, True)])
def test_sdpa_equals_the_reference(scope, training):
    torch.manual_seed(0)
    sizes = (8, 2, scope, (4, 5))
    layer = attention.ATTENTION["sdpa"](*sizes).double().train(training)
    x = torch.randn(2, 8, 4, 5, dtype=torch.float64)
    assert relative_error(layer(x), reference_output(layer, sizes, x)) < 1e-12


def test_flex_attention_equals_the_reference(monkeypatch):
    flex_attention = pytest.importorskip("torch.nn.attention.flex_attention").flex_attention
    monkeypatch.setattr(attention, "_compiled_flex", lambda: flex_attention)  # compilation takes half a minute
    torch.manual_seed(0)
    sizes = (32, 2, 5, (6, 6))
    layer, x = attention.ATTENTION["flex-attention"](*sizes).eval(), torch.randn(1, 32, 6, 6)
    with torch.no_grad():
        assert relative_error(layer(x), reference_output(layer, sizes, x)) < 1e-4


@pytest.mark.parametrize("name", peers.PEERS)
@pytest.mark.parametrize(("training", "stride"), [(True, 1), (False, 1), (True, 2)])
def test_peer_with_our_weights_equals_ours(name, training, stride):
    if peers.installed_version(peers.PEERS[name].package) is None:
        pytest.skip(f"{name} is not installed")
    torch.manual_seed(0)
    layer = LambdaLayer2d(16, query_depth=4, heads=2, scope=5, stride=stride, dtype=torch.float64).train(training)
    layer.query_norm.running_var.mul_(2)
    theirs = peers.build_peer(name, layer)
    x = torch.randn(2, 16, 6, 7, dtype=torch.float64)
    expected, actual = layer(x), theirs(x)
    assert relative_error(actual, expected) < 1e-12
    if stride == 1:
        gradient = torch.randn_like(expected)
        expected.backward(gradient)
        actual.backward(gradient)
        assert relative_error(peers.PEERS[name].grad_table(theirs), layer.embedding.table.grad) < 1e-12


def test_missing_peer_is_skipped_with_the_pip_command(monkeypatch):
    monkeypatch.setattr(peers, "installed_version", lambda package: None)
    with pytest.raises(peers.Skipped, match="not installed; pip install lambda-networks"):
        peers.build_peer("lambda-networks", LambdaLayer2d(16))
