"""Relative, dense and edge embeddings."""

import pytest
import torch
from torch.nn.utils.parametrizations import spectral_norm

from lambdanets import LambdaLayer2d, RelativeEmbedding
from lambdanets.layers import DenseEmbedding, EdgeEmbedding
from lambdanets.ops import definition, resize_table


@pytest.mark.parametrize(("heads", "intra_depth", "keep_sum"), [(None, 1, True), (None, 2, False), (2, 2, True)])
def test_resize_interpolates_the_table_of_each_head(heads, intra_depth, keep_sum):
    embedding = RelativeEmbedding((5, 5), 4, intra_depth, heads=heads)
    tables = [embedding.table] if heads is None else embedding.table
    expected = [resize_table(table.detach(), (7, 3), keep_sum=keep_sum) for table in tables]
    embedding.resize((7, 3), keep_sum=keep_sum)
    assert torch.equal(embedding(), expected[0] if heads is None else torch.stack(expected))
    assert embedding.scope == (7, 3)
    assert embedding.table.is_leaf
    assert dict(embedding.named_parameters()).keys() == {"table"}


@pytest.mark.parametrize("requires_grad", [True, False])
def test_resizing_keeps_dtype_device_and_requires_grad(requires_grad):
    embedding = RelativeEmbedding((5, 5), 4, device="meta", dtype=torch.bfloat16).requires_grad_(requires_grad)
    embedding.resize((9, 7))
    assert isinstance(embedding.table, torch.nn.Parameter)
    assert embedding.table.shape == (9, 7, 4)
    assert (embedding.table.dtype, embedding.table.device.type) == (torch.bfloat16, "meta")
    assert embedding.table.requires_grad == requires_grad


def test_resize_rejects_another_number_of_sides():
    embedding = RelativeEmbedding((5, 5), 4)
    with pytest.raises(ValueError, match=r"scope must have 2 side\(s\), like the current scope, got \(7,\)"):
        embedding.resize((7,))
    assert embedding.table.shape == (5, 5, 4)


@pytest.mark.parametrize("intra_depth", [1, 2])
@pytest.mark.parametrize("heads", [None, 3])
def test_of_pairs_equals_the_definition(heads, intra_depth):
    embedding = RelativeEmbedding((3, 5), 4, intra_depth, heads=heads)
    tables = embedding.table if heads else embedding.table[None]
    expected = torch.stack([definition.relative_embeddings(table, (3, 4), dilation=2) for table in tables])
    assert torch.equal(embedding.of_pairs((3, 4), dilation=2), expected if heads else expected[0])


def test_dense_embedding_returns_the_first_positions():
    embedding = DenseEmbedding(5, 6, 4, heads=2)
    assert torch.equal(embedding(3, 2), embedding.table[:, :3, :2])
    with pytest.raises(ValueError, match=r"x must be a map of 36 positions.*got \(6, 5\)"):
        LambdaLayer2d(8, embedding=DenseEmbedding(36, 36, 16))(torch.randn(1, 8, 6, 5))


@pytest.mark.parametrize("intra_depth", [1, 2])
def test_edge_embeddings_are_sums_over_edge_types(intra_depth):
    embedding = EdgeEmbedding(3, 4, intra_depth)
    edge_list = [(0, 0, 1, 2), (0, 1, 0, 1), (1, 2, 2, 0), (1, 2, 2, 2), (1, 0, 4, 1)]  # (example, n, m, type)
    *edges, types = torch.tensor(edge_list).T
    expected = torch.zeros(2, 3, 5, *embedding.table.shape[1:])
    for example, n, m, edge_type in edge_list:
        expected[example, n, m] += embedding.table.detach()[edge_type]
    embeddings = embedding(torch.stack(edges), types, (2, 3, 5))
    torch.testing.assert_close(embeddings, expected)
    embeddings.sum().backward()
    assert (embedding.table.grad == torch.tensor([1, 2, 2]).view(3, *[1] * intra_depth)).all()  # edges of each type


EDGES, TYPES = torch.zeros(3, 2, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
EDGE_EMBEDDING = EdgeEmbedding(3, 4)
INVALID = [
    (lambda: RelativeEmbedding(5, 4), "scope must be a tuple of 1, 2 or 3 odd and positive sides, got 5"),
    (lambda: RelativeEmbedding((5, 4), 4), r"scope must be a tuple of .* odd and positive sides, got \(5, 4\)"),
    (lambda: RelativeEmbedding((5,), 4, heads=0), "heads must be an integer of at least 1, got 0"),
    (lambda: RelativeEmbedding((3,), 4).of_pairs((5, 5)), r"grid must be a tuple of 1 sides, got \(5, 5\)"),
    (lambda: DenseEmbedding(5, 6, 4)(6, 6), "positions must be at most 5 x 6 for this DenseEmbedding, got 6 x 6"),
    (lambda: EDGE_EMBEDDING(EDGES[:2], TYPES, (1, 2, 2)), r"edges must have shape \(3, edges\).*, got \(2, 2\)"),
    (lambda: EDGE_EMBEDDING(EDGES, TYPES[:1], (1, 2, 2)), r"and types \(edges,\).*, got \(3, 2\) and \(1,\)"),
    (lambda: EDGE_EMBEDDING(EDGES, TYPES, (2, 2)), r"size must be \(b, n, m\), got \(2, 2\)"),
    (lambda: EDGE_EMBEDDING(EDGES + 2, TYPES, (3, 2, 2)), r"must be indices within size = \(3, 2, 2\)"),
    (lambda: EDGE_EMBEDDING(EDGES, TYPES + 3, (1, 2, 2)), "types from 0 to 2, got an index out of range"),
]


@pytest.mark.parametrize(("call", "message"), INVALID, ids=[message for _, message in INVALID])
def test_rejects_invalid_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_parametrized_table_is_converted():
    embedding = RelativeEmbedding((3, 3), 16)
    spectral_norm(embedding, "table")  # has vectors
    assert embedding.double().table.dtype == torch.float64
