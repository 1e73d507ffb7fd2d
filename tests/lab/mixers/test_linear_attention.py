import pytest
import torch
from torch.nn import functional as F

from lambdanets import LambdaLayer
from lambdanets_lab.mixers.linear import linear_attention

B = 2


def random(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("multi_head", [False, True])
def test_linear_attention_equals_attention_with_a_product_kernel(multi_head):
    heads, n, k, v = 3, 7, 4, 5
    lead = (B, heads) if multi_head else (B,)
    queries, keys, values = random(B, heads, n, k), random(*lead, n, k), random(*lead, n, v)
    # standard form: attention weights phi(q) phi(k)^T with normalized rows
    attention = (F.elu(queries) + 1) @ (F.elu(keys if multi_head else keys[:, None]) + 1).mT
    attention = attention / attention.sum(dim=-1, keepdim=True)
    expected = attention @ (values if multi_head else values[:, None])
    result = linear_attention(queries, keys, values, multi_head=multi_head)
    torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12)


def test_efficient_attention_is_a_content_only_layer_with_softmax_queries():
    torch.manual_seed(0)
    layer = LambdaLayer(8, heads=2, position=False, batch_norm=False, normalize_queries="softmax", dtype=torch.float64)
    x = random(B, 9, 8)
    queries = layer.query_projection(x).unflatten(2, (2, -1)).transpose(1, 2).softmax(dim=-1)
    keys, values = layer.key_projection(x).softmax(dim=1), layer.value_projection(x)
    attention = queries @ keys[:, None].mT
    torch.testing.assert_close(attention.sum(dim=-1), torch.ones(B, 2, 9, dtype=torch.float64))
    expected = (attention @ values[:, None]).transpose(1, 2).flatten(2)
    torch.testing.assert_close(layer(x), expected, rtol=1e-12, atol=1e-12)


def test_float16_does_not_overflow():
    queries, keys, values = (torch.randn(1, 2, 1024, 64, generator=torch.Generator().manual_seed(i)) for i in range(3))
    expected = linear_attention(queries, keys, values, multi_head=True)
    actual = linear_attention(queries.half(), keys.half(), values.half(), multi_head=True)
    assert actual.dtype == torch.float16
    torch.testing.assert_close(actual.float(), expected, rtol=1e-2, atol=1e-3)
