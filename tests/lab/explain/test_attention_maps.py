"""Attention maps reproduce the output of every layer."""

import pytest
import torch
from torch import nn

import lambdanets as ln
from adoption.foreign_layers import TemporalLambdaUNet
from lambdanets.adoption.trial import randomize
from lambdanets.layers import DenseEmbedding, EdgeEmbedding
from lambdanets.ops import definition
from lambdanets_lab.explain.attention import compute_attention_map, shared_keys

MAPS = {
    "strided": (ln.LambdaLayer2d, {"scope": 5, "stride": 2}, (7, 6)),
    "own pool": (ln.LambdaLayer2d, {"stride": 2, "pool": nn.AvgPool2d(2, 2, ceil_mode=True)}, (7, 6)),
    "causal, L2 keys": (ln.LambdaLayer2d, {"scope": 5, "causal": True, "normalize_keys": "l2"}, (5, 6)),
    "multi-head, bias, u = 2": (
        ln.LambdaLayer2d,
        {"scope": 5, "multi_head": True, "position_bias": True, "intra_depth": 2},
        (6, 7),
    ),
    "u = 3, causal, sequence": (ln.LambdaLayer1d, {"scope": 5, "intra_depth": 3, "causal": True}, (9,)),
    "position bias": (ln.LambdaLayer2d, {"scope": 5, "position_bias": True, "stride": 2}, (6, 7)),
    "content only": (ln.LambdaLayer2d, {"position": False}, (6, 7)),
    "position only": (ln.LambdaLayer2d, {"content": False, "scope": 3}, (6, 7)),
    "dense embedding": (ln.LambdaLayer2d, {"embedding": DenseEmbedding(42, 42, 16)}, (6, 7)),
    "slices": (ln.LambdaLayer3d, {"scope": 3, "content": "slices"}, (3, 5, 4)),
}


def make_layer(layer_type, options):
    torch.manual_seed(0)
    return randomize(layer_type(8, **options).double().eval())


def assert_reproduces(layer, inputs, output, positions, index):
    for position in positions:
        attention = compute_attention_map(layer, inputs, position, "layer")
        torch.testing.assert_close(attention.output(), output[index(position)], rtol=1e-10, atol=1e-10)


def test_weights_are_products_of_queries_with_keys_and_embeddings():
    layer = make_layer(ln.LambdaLayer2d, {"scope": 3})
    inputs = layer.prepare(torch.randn(1, 8, 4, 5, dtype=torch.float64))
    attention = compute_attention_map(layer, inputs, (2, 1), "layer")
    query = inputs.queries[0, :, 2 * 5 + 1]  # (h, k)
    embeddings = definition.relative_embeddings(inputs.tables[0], (4, 5))  # (n, m, k)
    torch.testing.assert_close(attention.content.flatten(1), query @ inputs.keys[0].softmax(0).mT)
    torch.testing.assert_close(attention.position.flatten(1), query @ embeddings[2 * 5 + 1].mT)


@pytest.mark.parametrize(("case", "masked"), [(case, bool(i % 2)) for i, case in enumerate(MAPS)])
def test_map_reproduces_the_output_of_map_layers(case, masked):
    layer_type, options, sides = MAPS[case]
    layer = make_layer(layer_type, options)
    x, mask = torch.randn(2, 8, *sides, dtype=torch.float64), None
    if masked:
        mask = torch.rand(2, *sides) > 0.3
        mask[0, (-1,) * len(sides)] = False
    inputs = layer.prepare(x, mask)
    output = layer(x, mask)
    sides = output.shape[2:]
    positions = [tuple(side - 1 for side in sides), (0,) * len(sides), tuple(side // 2 for side in sides)]
    assert_reproduces(layer, inputs, output, positions, lambda position: (0, slice(None), *position))


CONTEXT = {"embedding": DenseEmbedding(9, 7, 16), "dim_context": 6}
# options, and the shape of the mask
TOKENS = {
    "self": ({}, None),
    "causal, pairs of each example": ({"causal": True}, (2, 9, 9)),
    "u = 2, multi-head, padding": ({"intra_depth": 2, "multi_head": True}, (2, 1, 9)),
    "L2 keys, pairs": ({"normalize_keys": "l2"}, (9, 9)),
    "context": (CONTEXT, None),
    "context, padding": (CONTEXT, (2, 1, 7)),
    "context, pairs": (CONTEXT, (9, 7)),
}


@pytest.mark.parametrize(("options", "shape"), TOKENS.values(), ids=TOKENS.keys())
def test_map_reproduces_the_output_of_token_layers(options, shape):
    heads = 4 if options.get("multi_head") else None
    embedding = ln.RelativeEmbedding((7,), 16, options.get("intra_depth", 1), heads=heads)
    layer = make_layer(ln.LambdaLayer, {"embedding": embedding, **options})
    x, context = torch.randn(2, 9, 8, dtype=torch.float64), torch.randn(2, 7, 6, dtype=torch.float64)
    context = context if "dim_context" in options else None
    mask = None if shape is None else torch.rand(shape) > 0.4
    inputs, output = layer.prepare(x, context, mask=mask), layer(x, context, mask=mask)
    assert_reproduces(layer, inputs, output, [(0,), (4,), (8,)], lambda position: (0, *position))


def test_map_reproduces_the_output_on_graphs():
    edges = torch.tensor([[0, 0, 1], [0, 2, 1], [1, 0, 2]])
    embeddings = EdgeEmbedding(2, 16).double()(edges, torch.tensor([0, 1, 1]), (2, 3, 3))
    layer = make_layer(ln.LambdaLayer, {})
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    inputs, output = layer.prepare(x, embeddings=embeddings), layer(x, embeddings=embeddings)
    assert_reproduces(layer, inputs, output, [(0,), (1,), (2,)], lambda position: (0, *position))


def test_map_reproduces_the_output_of_slices_that_are_examples():
    network = nn.Sequential(TemporalLambdaUNet(8, 12, u=4, r=3, slices=2, dim_k=4, heads=2)).double().eval()
    ln.adopt(network)
    x = torch.randn(4, 8, 5, 6, dtype=torch.float64)
    assert_reproduces(network[0], network[0].prepare(x), network(x), [(2, 5)], lambda at: (0, slice(None), *at))


def test_shared_keys_are_normalized_over_the_positions():
    layer = make_layer(ln.LambdaLayer2d, {"scope": 3, "intra_depth": 2})
    mask = torch.ones(1, 5, 6, dtype=torch.bool)
    mask[0, 4] = False
    keys = shared_keys(layer, layer.prepare(torch.randn(1, 8, 5, 6, dtype=torch.float64), mask))
    assert keys.shape == (5, 6, 16, 2)
    assert not keys[4].any()
    torch.testing.assert_close(keys.sum((0, 1)), torch.ones(16, 2, dtype=torch.float64))
