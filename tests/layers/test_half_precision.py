"""float16: the layers stay finite where a common implementation overflows."""

import torch
from torch import nn
from torch.nn import functional as F

from lambdanets import LambdaLayer2d

SCOPE, HEADS = 23, 4


def random_image(scale, *shape):
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(0))


def conv3d_reference(layer, x):
    """Compute the layer as other packages do: a 3-D convolution over (v, H, W), then an einsum."""
    (b, _, height, width), h, k = x.shape, layer.heads, layer.query_depth
    queries = layer.query_projection(x).reshape(b, h, k, height * width)
    values = layer.value_projection(x).reshape(b, 1, layer.value_depth, height, width)
    weights = layer.embedding.table.permute(2, 0, 1)[:, None, None]  # (k, 1, 1, r, r)
    lambdas = F.conv3d(values, weights, padding=(0, SCOPE // 2, SCOPE // 2)).flatten(3)  # (b, k, v, n)
    return torch.einsum("bhkn,bkvn->bhvn", queries, lambdas).reshape(b, -1, height, width)


def test_layer_is_finite_in_float16_where_a_reference_is_nan():
    # sums of 529 embeddings times a query exceed the maximum of float16; batch norm then computes inf - inf = NaN
    torch.manual_seed(0)
    layer = LambdaLayer2d(16, content=False, batch_norm=False)
    norm, x = nn.BatchNorm2d(16), random_image(100, 1, 16, 24, 24)
    with torch.autocast("cpu", torch.float16):
        assert norm(conv3d_reference(layer, x)).isnan().any()
        output = norm(layer(x))
    assert output.isfinite().all()
    torch.testing.assert_close(output, norm(conv3d_reference(layer, x)), rtol=0.02, atol=0.02)
    output.square().mean().backward()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())
