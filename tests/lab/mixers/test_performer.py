"""Random features of the Performer: convergence, sampling and state dict."""

import math

import pytest
import torch

from lambdanets_lab.mixers.linear import SoftmaxPerformer, orthogonal_rows


def random_heads(*shape):
    return torch.randn(3, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_softmax_performer_converges_to_softmax_attention():
    queries, keys, values = random_heads(1, 2, 30, 8)
    queries, keys = queries / 2, keys / 2
    expected = (queries @ keys.mT / math.sqrt(8)).softmax(dim=-1) @ values
    torch.manual_seed(0)
    errors = []
    for count in (16, 256, 4096):
        layer = SoftmaxPerformer(16, heads=2, random_features=count).double()
        squares = []
        for _ in range(8):
            layer.redraw_features()
            squares.append((layer.attend(queries, keys, values) - expected).square().mean())
        errors.append((torch.stack(squares).mean() / expected.square().mean()).sqrt().item())
    # the error of r samples is about r^-1/2, so 16 times as many samples divide it by about 4
    assert errors[1] < errors[0] / 2
    assert errors[2] < errors[1] / 2.5
    assert errors[2] < 0.05


def test_softmax_features_do_not_overflow():
    queries, keys, values = (100 * random_heads(1, 2, 30, 8)).float()
    layer = SoftmaxPerformer(16, heads=2)
    inputs = [x.requires_grad_() for x in (queries, keys, values)]
    output = layer.attend(*inputs)
    output.sum().backward()
    assert output.isfinite().all()
    assert all(x.grad.isfinite().all() for x in inputs)


def test_random_features_are_orthogonal_with_gaussian_norms():
    torch.manual_seed(0)
    rows = orthogonal_rows(2 * 32 + 5, 32)
    assert rows.shape == (69, 32)
    for block in rows.split(32):
        products = block @ block.mT
        torch.testing.assert_close(products, torch.diag(products.diagonal()), rtol=0, atol=1e-4)
    lengths = orthogonal_rows(4096, 32).square().sum(1)
    assert lengths.mean().item() == pytest.approx(32, rel=0.02)
    assert lengths.var().item() == pytest.approx(64, rel=0.1)  # chi squared


@pytest.mark.parametrize(("dim", "count"), [(8, 1), (64, 17), (512, 267)])
def test_number_of_random_features_follows_the_theorem(dim, count):
    assert len(SoftmaxPerformer(dim).weights) == count
