"""The lambda layer on tokens, against the definition of the operation.

Letters: B batch size, N query positions, M context positions, DIM input channels, CONTEXT context channels.
"""

import copy

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from all_pairs import all_pairs, in_turn
from lambdanets import LambdaLayer, RelativeEmbedding
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
    options = {"mask": mask, "multi_head": layer.multi_head, "normalize_keys": layer.normalize_keys}
    output = definition.lambda_interaction(queries, keys, values.movedim(-1, -3), embeddings, **options)
    return output.transpose(1, 2).reshape(b, n, layer.dim_out)


def relative(scope, **options):
    return RelativeEmbedding((scope,), 4, dtype=torch.float64, **options)


def dense(**options):
    return DenseEmbedding(N + 2, M + 2, 4, dtype=torch.float64, **options)


OPTIONS = {
    "embedding": (relative, dense, None),
    "mask": (None, "b 1 m", "1 m", "n m", "b n m", "1 n m"),
    "has_context": (False, True),
    "normalization": ({}, {"normalize_keys": "l2", "batch_norm": False}, {"normalize_queries": "softmax"}),
    "content": (True, False),
    "causal": (False, True),
    "multi_head": (False, True),
    "intra_depth": (1, 2),
}


def is_valid(embedding, mask, has_context, _, content, causal, *others):
    return (embedding or content) and not (causal and has_context)


ROWS = [dict(zip(OPTIONS, row, strict=True)) for row in all_pairs(*OPTIONS.values(), valid=is_valid)]
CASES = {", ".join(getattr(x, "__name__", str(x)) for x in row.values()): row for row in ROWS}
parametrize_cases = pytest.mark.parametrize("case", CASES)


def make_case(case):
    """Return the layer in eval mode, its tokens, context and mask, and the embeddings of all pairs."""
    options = dict(CASES[case])
    embedding, letters, has_context = (options.pop(name) for name in ("embedding", "mask", "has_context"))
    n, m = N, M if has_context else N
    if embedding is not None:
        heads = 2 if options["multi_head"] else None
        lengths = {"scope": 5} if embedding is relative else {}
        options["embedding"] = embedding(**lengths, intra_depth=options["intra_depth"], heads=heads)
    options |= {"position": embedding is not None, "dim_out": 12, "dim_context": CONTEXT if has_context else DIM}
    layer = make_layer(**options.pop("normalization"), **options).eval()
    mask = embeddings = None
    if letters is not None:
        shape = [{"b": B, "n": n, "m": m, "1": 1}[letter] for letter in letters.split()]
        mask = torch.rand(shape, generator=torch.Generator().manual_seed(1)) > 0.3
    if embedding is not None:
        embeddings = layer.embedding.of_pairs((n,), (m,)) if embedding is relative else layer.embedding(n, m)
    context = random_tokens(B, m, CONTEXT) if has_context else None
    return layer, random_tokens(B, n, DIM), context, mask, embeddings


@parametrize_cases
def test_equals_the_definition(case):
    layer, x, context, mask, embeddings = make_case(case)
    expected = reference_output(layer, x, x if context is None else context, mask, embeddings)
    if context is None and mask is not None and mask.shape[-2] == 1:  # padding of x itself
        expected = expected * mask.reshape(-1, N, 1)
    torch.testing.assert_close(layer(x, context, mask=mask), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("case", "batch", "training"), in_turn(CASES, (1, 2), (False, True)))
def test_first_and_second_derivatives(case, batch, training):
    layer, x, context, mask, _ = make_case(case)
    layer.train(training)
    mask = mask if mask is None or len(mask) != B else mask[:batch]
    inputs = [y[:batch].requires_grad_() for y in (x, context) if y is not None]
    assert gradcheck(lambda *y: layer(*y, mask=mask), inputs, fast_mode=True)
    assert gradgradcheck(lambda *y: layer(*y, mask=mask), inputs, fast_mode=True)


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


def test_layers_in_bfloat16_take_contexts_with_tables_in_float32():
    layer = make_layer(torch.float32, position=True, scope=5).eval()
    x, context = random_tokens(B, N, DIM, dtype=torch.float32), random_tokens(B, M, DIM, dtype=torch.float32)
    expected = layer(x, context)
    layer.bfloat16().embedding.float()
    result = layer(x.bfloat16(), context.bfloat16())
    torch.testing.assert_close(result.float(), expected, rtol=0.05, atol=0.05 * expected.abs().max().item())


CROSS, FEW = {"dim_context": CONTEXT}, DenseEmbedding(4, 4, 4, dtype=torch.float64)
INVALID_ARGUMENTS = [
    ({"position": True}, {}, "embeddings must be a tensor unless .*; create the layer with scope=63"),
    ({"position": True, "embedding": FEW}, {}, "positions must be at most 4 x 4 .*, got 6 x 6"),
    ({}, {"mask": torch.ones(B, 1, N)}, "mask must be bool.*got torch.float32"),
    ({}, {"mask": torch.ones(N, M).bool()}, r"mask must be \(n, m\) or .* with b = 2, n = 6, m = \d, got shape"),
    ({}, {"mask": torch.ones(B, N).bool()}, r"got shape \(2, 6\); .* by mask\[:, None\]"),
    ({}, {"x": random_tokens(B, DIM, N)}, r"x must be \(b, n, dim\) with dim = 8, got shape \(2, 8, 6\)"),
    (CROSS, {}, r"context must be .* with dim_context = 5, b = 2, got shape \(2, 6, 8\)"),
    (CROSS | {"causal": True}, {"context": random_tokens(B, M, CONTEXT)}, "context must have 6 positions"),
    ({"stride": 2}, {}, "stride must be 1 and pool None .* for tokens; got stride=2"),
]


@pytest.mark.parametrize(("options", "arguments", "message"), INVALID_ARGUMENTS)
def test_rejects_invalid_arguments(options, arguments, message):
    with pytest.raises(ValueError, match=message):
        make_layer(**options)(**({"x": random_tokens(B, N, DIM)} | arguments))
