import pytest
import torch

from lambdanets import LambdaLayer2d, resize_table
from lambdanets.layers.embeddings import RelativeEmbedding


@pytest.mark.parametrize("intra_depth", [1, 2])
@pytest.mark.parametrize("keep_sum", [True, False])
def test_resizing_replaces_the_table_by_the_interpolated_one(keep_sum, intra_depth):
    embedding = RelativeEmbedding((5, 5), 4, intra_depth)
    expected = resize_table(embedding.table.detach(), (7, 3), keep_sum=keep_sum)
    embedding.resize((7, 3), keep_sum=keep_sum)
    assert torch.equal(embedding(), expected)
    assert dict(embedding.named_parameters()).keys() == {"table"}


@pytest.mark.parametrize("requires_grad", [True, False])
def test_resizing_keeps_dtype_device_and_requires_grad(requires_grad):
    embedding = RelativeEmbedding((5, 5), 4, device="meta", dtype=torch.bfloat16).requires_grad_(requires_grad)
    embedding.resize((9, 7))
    assert isinstance(embedding.table, torch.nn.Parameter)
    assert embedding.table.shape == (9, 7, 4)
    assert (embedding.table.dtype, embedding.table.device.type) == (torch.bfloat16, "meta")
    assert embedding.table.requires_grad == requires_grad


def test_the_resized_table_is_a_leaf_of_its_own():
    embedding = RelativeEmbedding((5, 5), 4)
    old = embedding.table
    embedding.resize((5, 5))
    assert embedding.table.is_leaf
    assert embedding.table.data_ptr() != old.data_ptr()
    assert torch.equal(embedding.table, old)


def test_a_layer_serves_and_trains_with_its_table_resized():
    torch.manual_seed(0)
    layer = LambdaLayer2d(8, query_depth=4, heads=2, scope=5)
    layer.embedding.resize((7, 5))
    output = layer(torch.randn(2, 8, 9, 6))
    assert output.shape == (2, 8, 9, 6)
    output.square().sum().backward()
    assert layer.embedding.table.grad.shape == (7, 5, 4)
    assert layer.state_dict()["embedding.table"].shape == (7, 5, 4)


@pytest.mark.parametrize(
    ("scope", "message"),
    [
        ((7, 4), r"scope must be 1, 2 or 3 whole numbers, odd and positive, got \(7, 4\)"),
        (7, "scope must be .*got 7"),
        ((7,), r"scope must have as many sides as before, 2, got \(7,\)"),
        ((3, 3, 3), r"table must have 3 sides, as scope has"),
    ],
    ids=str,
)
def test_a_scope_that_does_not_fit_is_named_and_nothing_is_changed(scope, message):
    embedding = RelativeEmbedding((5, 5), 4)
    with pytest.raises(ValueError, match=message):
        embedding.resize(scope)
    assert embedding.table.shape == (5, 5, 4)
