"""Random features: what they estimate, how they are drawn and kept."""

import math

import pytest
import torch

from lambdanets.layers.baselines import ReluPerformer, SoftmaxPerformer
from lambdanets.layers.baselines.performer import orthogonal_rows


def heads(*shape):
    return torch.randn(3, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_softmax_features_come_closer_to_softmax_attention_the_more_there_are():
    queries, keys, values = heads(1, 2, 30, 8)
    queries, keys = queries / 2, keys / 2
    exact = (queries @ keys.mT / math.sqrt(8)).softmax(dim=-1) @ values
    torch.manual_seed(0)
    errors = []
    for count in (16, 256, 4096):
        layer = SoftmaxPerformer(16, heads=2, random_features=count, dtype=torch.float64)
        squares = []
        for _ in range(8):
            layer.redraw_features()
            squares.append((layer.attend(queries, keys, values) - exact).square().mean())
        errors.append((torch.stack(squares).mean() / exact.square().mean()).sqrt().item())
    # an estimate of r samples errs by r^-1/2: each step of 16 divides by about 4
    assert errors[1] < errors[0] / 2
    assert errors[2] < errors[1] / 2.5
    assert errors[2] < 0.05


def test_exponentials_of_long_keys_and_queries_do_not_overflow():
    queries, keys, values = (100 * heads(1, 2, 30, 8)).float()
    layer = SoftmaxPerformer(16, heads=2)
    inputs = [part.requires_grad_() for part in (queries, keys, values)]
    output = layer.attend(*inputs)
    output.sum().backward()
    assert output.isfinite().all()
    assert all(part.grad.isfinite().all() for part in inputs)


def test_directions_are_orthogonal_in_each_block_and_as_long_as_gaussian_vectors():
    torch.manual_seed(0)
    rows = orthogonal_rows(2 * 32 + 5, 32)
    assert rows.shape == (69, 32)
    for block in rows.split(32):
        products = block @ block.mT
        torch.testing.assert_close(products, torch.diag(products.diagonal()), rtol=0, atol=1e-4)
    lengths = orthogonal_rows(4096, 32).square().sum(1)
    assert lengths.mean().item() == pytest.approx(32, rel=0.02)
    assert lengths.var().item() == pytest.approx(64, rel=0.1)  # chi squared


def test_features_are_kept_with_the_weights_until_they_are_drawn_again():
    layer, other = ReluPerformer(32), ReluPerformer(32)
    assert not torch.equal(layer.weights, other.weights)
    other.load_state_dict(layer.state_dict())
    x = torch.randn(1, 32, 5, 4)
    assert torch.equal(layer(x), other(x))
    before = layer.weights.clone()
    layer.redraw_features()
    assert not torch.equal(layer.weights, before)
    assert "weights" not in dict(layer.named_parameters())


@pytest.mark.parametrize(("dim", "count"), [(8, 1), (64, 17), (512, 267)])
def test_there_are_as_many_features_as_the_theorem_asks_for(dim, count):
    assert len(SoftmaxPerformer(dim).weights) == count
