"""The lambda layer on tokens, against the definition of the operation.

Letters: B batch size, N query positions, M context positions, DIM input channels, CONTEXT context channels.
"""

import copy

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from lambdanets import LambdaLayer, LambdaLayer1d, RelativeEmbedding
from lambdanets.layers import DenseEmbedding, EdgeEmbedding
from lambdanets.ops import definition

B, N, M, DIM, CONTEXT = 2, 6, 9, 8, 5


def make_layer(dtype=torch.float64, **options):
    torch.manual_seed(0)
    return LambdaLayer(DIM, **({"query_depth": 4, "heads": 2, "dtype": dtype, "position": False} | options))


def random_tokens(*shape, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype)


def reference_output(layer, x, context, mask, embeddings):
    """Return the output of the layer, computed from its parameters by `ops.definition`."""
    (b, n, _), m = x.shape, context.shape[1]
    h, k, u, v = layer.heads, layer.query_depth, layer.intra_depth, layer.value_depth
    per_head = (h,) if layer.multi_head else ()
    queries = layer.query_norm(layer.query_projection(x).transpose(1, 2)).reshape(b, h, k, n).transpose(2, 3)
    if layer.normalize_queries:
        queries = queries.softmax(dim=3)
    values = layer.value_norm(layer.value_projection(context).transpose(1, 2)).reshape(b, *per_head, v, u, m)
    keys = None
    if layer.key_projection is not None:
        keys = layer.key_projection(context).transpose(1, 2).reshape(b, *per_head, k, u, m).movedim(-1, -3)
    if embeddings is not None and u == 1:
        embeddings = embeddings.unsqueeze(-1)
    if layer.causal:
        causal_mask = torch.ones(n, n, dtype=torch.bool).tril()
        mask = causal_mask if mask is None else mask & causal_mask
    output = definition.lambda_interaction(
        queries,
        keys,
        values.movedim(-1, -3),
        embeddings,
        mask=mask,
        multi_head=layer.multi_head,
        normalize_keys=layer.normalize_keys,
    )
    return output.transpose(1, 2).reshape(b, n, layer.dim_out)


def relative(scope, **options):
    return RelativeEmbedding((scope,), 4, dtype=torch.float64, **options)


def dense(**options):
    return DenseEmbedding(N + 2, M + 2, 4, dtype=torch.float64, **options)


# options of the layer, whether there is a separate context, shape of the mask
CASES = {
    "content only": ({}, False, None),
    "relative": ({"position": True, "embedding": relative(5)}, False, None),
    "relative, causal": ({"position": True, "embedding": relative(5), "causal": True}, False, None),
    "relative, padding": ({"position": True, "embedding": relative(5)}, False, (B, 1, N)),
    "relative, mask": ({"position": True, "embedding": relative(5)}, False, (N, N)),
    "relative, multi-head": (
        {"position": True, "embedding": relative(5, heads=2), "multi_head": True},
        False,
        None,
    ),
    "relative, separate context": ({"position": True, "embedding": relative(7)}, True, None),
    "relative, padding of all examples": ({"position": True, "embedding": relative(5)}, False, (1, N)),
    "dense, mask of all examples": ({"position": True, "embedding": dense()}, False, (1, N, N)),
    "dense": ({"position": True, "embedding": dense()}, False, None),
    "dense, separate context": ({"position": True, "embedding": dense()}, True, None),
    "dense, separate context, padding": ({"position": True, "embedding": dense()}, True, (B, 1, M)),
    "dense, separate context, mask per example": ({"position": True, "embedding": dense()}, True, (B, N, M)),
    "dense, causal, intra-depth": (
        {"position": True, "embedding": dense(intra_depth=2), "intra_depth": 2, "causal": True},
        False,
        None,
    ),
    "dense, multi-head, separate context": (
        {"position": True, "embedding": dense(heads=2), "multi_head": True},
        True,
        (1, M),
    ),
    "separate context, l2 keys, softmax queries": (
        {"normalize_keys": "l2", "normalize_queries": "softmax"},
        True,
        None,
    ),
    "position only, no batch norm": (
        {"position": True, "embedding": dense(), "content": False, "batch_norm": False},
        True,
        None,
    ),
    "dim_out": ({"dim_out": 12, "heads": 3}, False, None),
}
parametrize_cases = pytest.mark.parametrize(("options", "has_context", "mask_shape"), CASES.values(), ids=CASES.keys())


def make_case(options, has_context, mask_shape):
    context = random_tokens(B, M, CONTEXT) if has_context else None
    layer = make_layer(**options, **({"dim_context": CONTEXT} if has_context else {}))
    mask = None
    if mask_shape is not None:
        mask = torch.rand(mask_shape, generator=torch.Generator().manual_seed(1)) > 0.3
    return layer, random_tokens(B, N, DIM), context, mask


@parametrize_cases
def test_equals_the_definition(options, has_context, mask_shape):
    layer, x, context, mask = make_case(options, has_context, mask_shape)
    layer.eval()
    embeddings = None
    if isinstance(layer.embedding, RelativeEmbedding):
        embeddings = layer.embedding.of_pairs((N,), (M if has_context else N,))
    elif layer.embedding is not None:
        embeddings = layer.embedding(N, M if has_context else N)
    expected = reference_output(layer, x, x if context is None else context, mask, embeddings)
    if not has_context and mask_shape in ((B, 1, N), (1, N)):  # padding of x itself
        expected = expected * mask.reshape(-1, N, 1)
    torch.testing.assert_close(layer(x, context, mask=mask), expected, rtol=1e-12, atol=1e-12)


@parametrize_cases
@pytest.mark.parametrize("batch", [1, 2])
def test_gradcheck(options, has_context, mask_shape, batch):
    layer, x, context, mask = make_case(options, has_context, mask_shape)
    mask = mask if mask is None or mask.ndim == 2 else mask[:batch]
    inputs = [y[:batch].requires_grad_() for y in (x, context) if y is not None]
    assert gradcheck(lambda *y: layer(*y, mask=mask), inputs, fast_mode=True)
    assert gradgradcheck(lambda *y: layer(*y, mask=mask), inputs, fast_mode=True)


def test_token_layer_equals_lambda_layer_1d_on_sequences():
    table = relative(5)
    sequence = LambdaLayer1d(DIM, query_depth=4, heads=2, embedding=table, causal=True, dtype=torch.float64)
    layer = make_layer(position=True, embedding=table, causal=True)
    state = {
        name: x.squeeze(-1) if name.endswith("projection.weight") else x for name, x in sequence.state_dict().items()
    }
    layer.load_state_dict(state)
    x = random_tokens(B, N, DIM)
    torch.testing.assert_close(layer(x), sequence(x.transpose(1, 2)).transpose(1, 2), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_outputs_are_independent_of_context_padding(training):
    layer = make_layer(position=True, embedding=dense(), dim_context=CONTEXT).train(training)
    x, context = random_tokens(B, N, DIM), random_tokens(B, M, CONTEXT)
    mask = torch.ones(B, 1, M, dtype=torch.bool)
    mask[:, :, -3:] = False
    corrupted = context.masked_fill(~mask.transpose(1, 2), torch.nan)
    expected = copy.deepcopy(layer)(x, context[:, :-3])
    for shape in ((B, 1, M), (1, 1, M), (1, M)):
        result = copy.deepcopy(layer)(x, corrupted, mask=mask[:1].expand(shape) if len(shape) > 2 else mask[0])
        torch.testing.assert_close(result, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_outputs_and_gradients_are_independent_of_token_padding(training):
    layer = make_layer(position=True, embedding=dense()).train(training)
    x, mask = random_tokens(B, N, DIM), torch.ones(B, 1, N, dtype=torch.bool)
    mask[:, :, -2:] = False
    corrupted, unmasked_layer = x.masked_fill(~mask.transpose(1, 2), torch.nan), copy.deepcopy(layer)
    expected, result = unmasked_layer(x[:, :-2]), layer(corrupted, mask=mask)
    torch.testing.assert_close(result[:, :-2], expected, rtol=1e-11, atol=1e-11)
    assert not result[:, -2:].any()
    expected.square().sum().backward()
    result.square().sum().backward()
    for parameter, reference in zip(layer.parameters(), unmasked_layer.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, reference.grad, rtol=1e-9, atol=1e-9)


def test_multi_head_edge_embeddings_equal_the_definition():
    torch.manual_seed(0)
    layer = make_layer(position=True, multi_head=True).eval()
    edge_embedding = EdgeEmbedding(3, 4, heads=2, dtype=torch.float64)
    edges, types = torch.tensor([[0, 1, 1], [2, 0, 3], [1, 4, 4]]), torch.tensor([0, 2, 1])
    embeddings = edge_embedding(edges, types, (B, N, N))
    assert torch.equal(embeddings[1, :, 3, 4], edge_embedding.table[:, 1])
    x = random_tokens(B, N, DIM)
    expected = reference_output(layer, x, x, None, embeddings)
    torch.testing.assert_close(layer(x, embeddings=embeddings), expected, rtol=1e-12, atol=1e-12)


def test_forward_accepts_embeddings_per_example():
    layer = make_layer(position=True).eval()
    x, embeddings = random_tokens(B, N, DIM), random_tokens(B, N, N, 4)
    expected = reference_output(layer, x, x, None, embeddings)
    torch.testing.assert_close(layer(x, embeddings=embeddings), expected, rtol=1e-12, atol=1e-12)


def test_layer_with_edge_embeddings_is_permutation_equivariant():
    torch.manual_seed(0)
    layer, edge_embedding = make_layer(position=True).eval(), EdgeEmbedding(3, 4, dtype=torch.float64)
    x = random_tokens(1, N, DIM)
    pairs, types = torch.randint(N, (2, 11)), torch.randint(3, (11,))
    permutation = torch.randperm(N)
    inverse = permutation.argsort()

    def output(x, pairs):
        edges = torch.cat([torch.zeros(1, 11, dtype=torch.int64), pairs])
        return layer(x, embeddings=edge_embedding(edges, types, (1, N, N)))

    torch.testing.assert_close(
        output(x[:, permutation], inverse[pairs]), output(x, pairs)[:, permutation], rtol=1e-11, atol=1e-11
    )


class ReturnsNone(torch.nn.Module):
    def forward(self, positions, context_positions):
        return None


INVALID_ARGUMENTS = {
    "missing embeddings": ({"position": True}, {}, "embeddings must be a tensor, or embedding a module"),
    "embeddings without position term": (
        {}, {"embeddings": random_tokens(N, N, 4)}, "embeddings must be None for a layer with position=False"
    ),
    "float mask": ({}, {"mask": torch.ones(B, 1, N)}, "mask must be bool.*got torch.float32"),
    "no tokens": ({}, {"x": None}, "x must be a tensor, got NoneType"),
    "missing context": ({"dim_context": CONTEXT}, {}, "context must be a tensor if dim_context = 5 differs"),
    "context with other channels": (
        {"dim_context": CONTEXT}, {"context": random_tokens(B, M, DIM)},
        r"context must be \(b, positions, channels = 5\)",
    ),
    "context with another batch size": (
        {"dim_context": CONTEXT}, {"context": random_tokens(3, M, CONTEXT)}, "context must have batch size 2, like x"
    ),
    "causal with a separate context": (
        {"dim_context": CONTEXT, "causal": True}, {"context": random_tokens(B, M, CONTEXT)},
        "context must have 6 positions",
    ),
    "mask of another shape": (
        {}, {"mask": torch.ones(N, M, dtype=torch.bool)}, r"mask must be bool, \(n, m\) = \(6, 6\)"
    ),
    "more positions than embeddings": (
        {"position": True, "embedding": DenseEmbedding(4, 4, 4, dtype=torch.float64)}, {},
        "positions must be at most 4 x 4 for this DenseEmbedding, got 6 x 6",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("options", "arguments", "message"), INVALID_ARGUMENTS.values(), ids=INVALID_ARGUMENTS.keys())
def test_rejects_invalid_forward_arguments(options, arguments, message):
    layer = make_layer(**options)
    with pytest.raises(ValueError, match=message):
        layer(**({"x": random_tokens(B, N, DIM)} | arguments))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim_context": 0}, "dim_context must be an integer of at least 1, got 0"),
        ({"position": True, "embedding": "relative"}, "embedding must be a module, got str"),
        ({"embedding": relative(5)}, "embedding must be None when position is False"),
        (
            {"position": True, "embedding": RelativeEmbedding((5, 5), 4)},
            r"embedding must have 1 dimension\(s\), got 2",
        ),
    ],
    ids=["zero dim_context", "string for embedding", "embedding with position=False", "2d embedding"],
)
def test_rejects_invalid_constructor_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        make_layer(**options)


def test_rejects_tokens_of_wrong_shape():
    with pytest.raises(ValueError, match=r"x must be \(b, positions, channels = 8\), got shape \(2, 8, 6\)"):
        make_layer()(random_tokens(B, DIM, N))
