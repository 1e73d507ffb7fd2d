import pytest
import torch
from timm.layers import SEModule
from timm.layers.cbam import SpatialAttn
from torch.nn import functional as F

from lambdanets import LambdaLayer
from lambdanets.ops import attention_forms, lambda_interaction

B, K, H, W = 2, 6, 4, 5


def feature_map(dtype=torch.float64):
    return torch.randn(B, K, H, W, dtype=dtype, generator=torch.Generator().manual_seed(0))


def to_queries(x):
    return x.flatten(2).transpose(1, 2).unsqueeze(1)  # (b, 1, n, k)


def random(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def test_squeeze_and_excitation_is_a_diagonal_lambda():
    torch.manual_seed(0)
    module, x = SEModule(K, rd_channels=3).double(), feature_map()
    weights = module.gate(module.fc2(module.act(module.fc1(x.mean((2, 3), keepdim=True)))))[:, :, 0, 0]
    lambdas = attention_forms.channel_attention_lambda(weights)
    torch.testing.assert_close(attention_forms.apply_lambdas(to_queries(x), lambdas), to_queries(module(x)))


def test_spatial_attention_is_a_scalar_lambda_per_position():
    torch.manual_seed(0)
    module, x = SpatialAttn(3).double().eval(), feature_map()
    pooled = torch.cat([x.mean(dim=1, keepdim=True), x.amax(dim=1, keepdim=True)], dim=1)
    lambdas = attention_forms.spatial_attention_lambdas(module.conv(pooled).sigmoid().flatten(1), K)
    torch.testing.assert_close(attention_forms.apply_lambdas(to_queries(x), lambdas), to_queries(module(x)))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("multi_head", [False, True])
def test_linear_attention_equals_attention_with_a_product_kernel(multi_head, causal):
    heads, n, k, v = 3, 7, 4, 5
    lead = (B, heads) if multi_head else (B,)
    queries, keys, values = random(B, heads, n, k), random(*lead, n, k), random(*lead, n, v)
    # standard form: attention weights phi(q) phi(k)^T with normalized rows
    attention = (F.elu(queries) + 1) @ (F.elu(keys if multi_head else keys[:, None]) + 1).mT
    attention = attention.tril() if causal else attention
    attention = attention / attention.sum(dim=-1, keepdim=True)
    expected = attention @ (values if multi_head else values[:, None])
    result = attention_forms.linear_attention(queries, keys, values, causal=causal, multi_head=multi_head)
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


def test_apply_lambdas_accepts_one_lambda_per_position():
    queries, keys, values, embeddings = random(B, 2, 5, K), random(B, 7, K), random(B, 7, 3), random(5, 7, K)
    lambdas = torch.einsum("bmk,bmv->bkv", keys.softmax(dim=1), values).unsqueeze(1)
    lambdas = lambdas + torch.einsum("nmk,bmv->bnkv", embeddings, values)
    result = attention_forms.apply_lambdas(queries, lambdas)
    torch.testing.assert_close(result, lambda_interaction(queries, keys, values, embeddings))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda: attention_forms.channel_attention_lambda(random(B)), r"weights must be \(b, k\), got shape \(2,\)"),
        (lambda: attention_forms.spatial_attention_lambdas(random(B), 3), r"weights must be \(b, n\), got shape"),
        (
            lambda: attention_forms.apply_lambdas(random(B, 1, 5, K), random(B, 4, K, 3)),
            r"lambdas \(b, k, v\) or \(b, n, k, v\); got shapes \(2, 1, 5, 6\) and \(2, 4, 6, 3\)",
        ),
        (lambda: attention_forms.apply_lambdas(random(5, K), random(B, K, 3)), r"queries must be \(b, h, n, k\)"),
    ],
    ids=["channel", "spatial", "lambdas", "queries"],
)
def test_rejects_invalid_arguments(function, message):
    with pytest.raises(ValueError, match=message):
        function()
