"""All baselines: reference implementations, gradients, sizes, memory formats, precision and errors."""

import math

import pytest
import torch

from lab.mixers.reference_mixers import REFERENCES
from lambdanets.adoption.trial import randomize
from lambdanets_lab.mixers import MIXERS, option_names
from lambdanets_lab.mixers.linear import SoftmaxPerformer, orthogonal_rows

WITH_HEADS = {name for name in MIXERS if "heads" in option_names(name)}
WITH_SCOPE = {name for name in MIXERS if "scope" in option_names(name)}
WITH_DISTANCE = {name for name in MIXERS if "max_distance" in option_names(name)}


def build(name, dim=16, dim_out=None, **options):
    """Return a mixer in float64 with random numbers, also in batch norms."""
    torch.manual_seed(0)
    options = ({"heads": 2} if name in WITH_HEADS else {}) | options
    return randomize(MIXERS[name](dim, dim_out, **options).double())


def random_maps(*shape, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=dtype)


@pytest.mark.parametrize("shape", [(1, 16, 5, 3), (1, 16, 1, 4), (1, 16, 9, 10), (2, 8, 4, 3)], ids=str)
@pytest.mark.parametrize("name", REFERENCES)
def test_equals_the_reference_implementation(name, shape):
    options = {"scope": 3} if name in WITH_SCOPE and shape[0] == 1 else {}  # scopes of 7 are larger than the last map
    options |= {"max_distance": 2} if name in WITH_DISTANCE and shape[0] == 1 else {}  # larger offsets are clipped
    options |= {"dim_out": 24} if name != "channel_attention" else {}
    layer, x = build(name, shape[1], **options).eval(), random_maps(*shape)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), REFERENCES[name](layer, x), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", MIXERS)
def test_gradcheck(name):
    options = {"scope": 3} if name in WITH_SCOPE else {}
    options |= {"share": 2} if "share" in option_names(name) else {}
    options |= {"max_distance": 1} if name in WITH_DISTANCE else {}
    layer = build(name, 4, 4 if name != "augmented_attention" else 6, stride=2, **options)
    x = random_maps(2, 4, 3, 2).requires_grad_()
    names, parameters = zip(*layer.named_parameters(), strict=True)

    def output(x, *values):
        return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (x,))

    assert torch.autograd.gradcheck(output, (x, *parameters), fast_mode=True)


@pytest.mark.parametrize("name", MIXERS)
def test_channels_last_changes_only_the_layout(name):
    layer = build(name, stride=3, dim_out=24)
    x = random_maps(2, 16, 8, 11)
    gradients, outputs = [], []
    for memory_format in (torch.contiguous_format, torch.channels_last):
        inputs = x.clone(memory_format=memory_format).requires_grad_()
        output = layer(inputs)
        assert output.shape == (2, 24, 3, 4)
        assert output.is_contiguous(memory_format=memory_format)
        (output * random_maps(*output.shape)).sum().backward()
        outputs.append(output)
        gradients.append(inputs.grad)
    torch.testing.assert_close(*outputs, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", MIXERS)
def test_outputs_and_gradients_are_accurate_under_autocast(name, dtype):
    layer = build(name, 32).float().eval()
    x = (10 * random_maps(2, 32, 12, 10, dtype=torch.float32)).requires_grad_()
    with torch.no_grad():
        expected = layer(x)
    with torch.autocast("cpu", dtype):
        output = layer(x)
    output.float().mean().backward()
    assert output.isfinite().all()
    assert x.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())
    # large queries make the softmax sharp, which amplifies rounding errors
    error = (output.float() - expected).square().mean().sqrt() / expected.square().mean().sqrt()
    assert error < (0.3 if dtype == torch.bfloat16 else 0.05)


def test_softmax_performer_converges_to_softmax_attention():
    queries, keys, values = random_maps(3, 1, 2, 30, 8)
    queries, keys = queries / 2, keys / 2
    expected = (queries @ keys.mT / math.sqrt(8)).softmax(dim=-1) @ values
    torch.manual_seed(0)
    errors = []
    for count in (16, 256, 4096):
        layer = SoftmaxPerformer(16, heads=2, random_features=count).double()
        squares = []
        for _ in range(8):
            layer.weights.copy_(orthogonal_rows(*layer.weights.shape))
            squares.append((layer.attend(queries, keys, values) - expected).square().mean())
        errors.append((torch.stack(squares).mean() / expected.square().mean()).sqrt().item())
    # the error of r samples is about r^-1/2, so 16 times as many samples divide it by about 4
    assert errors[1] < errors[0] / 2
    assert errors[2] < errors[1] / 2.5
    assert errors[2] < 0.05


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
