"""The reference layers equal the definition; the error measure."""

import math

import pytest
import torch

from lambdanets import LambdaLayer2d
from lambdanets.ops import definition
from lambdanets_lab.benchmark import reference


def test_reference_layer_equals_the_definition():
    torch.manual_seed(0)
    layer = LambdaLayer2d(8, query_depth=4, heads=2, scope=3, dtype=torch.float64).eval()
    x = torch.randn(2, 8, 3, 4, dtype=torch.float64)
    queries = layer.query_norm(layer.query_projection(x)).unflatten(1, (2, 4)).flatten(3).transpose(2, 3)
    keys = layer.key_projection(x).flatten(2).transpose(1, 2)
    values = layer.value_norm(layer.value_projection(x)).flatten(2).transpose(1, 2)
    embeddings = definition.relative_embeddings(layer.embedding.table, (3, 4))
    expected = definition.lambda_interaction(queries, keys, values, embeddings)  # (b, h, n, v)
    actual = reference.ReferenceLambdaLayer(layer)(x)
    assert reference.relative_error(actual, expected.transpose(2, 3).reshape(2, 8, 3, 4)) < 1e-12


@pytest.mark.parametrize("training", [True, False])
def test_reference_layer_equals_ours_with_stride_and_batch_norm(training):
    torch.manual_seed(0)
    layer = LambdaLayer2d(8, heads=2, scope=5, stride=2, dtype=torch.float64).train(training)
    x = torch.randn(2, 8, 5, 6, dtype=torch.float64)
    assert reference.relative_error(layer(x), reference.reference_copy(layer)(x)) < 1e-12


def test_error_is_infinite_for_nonfinite_values_and_other_shapes():
    ones = torch.ones(3, dtype=torch.float64)
    assert reference.relative_error(ones, ones) == 0
    assert reference.relative_error(1.5 * ones, ones) == pytest.approx(0.5)
    assert math.isinf(reference.relative_error(ones / 0, ones))
    assert math.isinf(reference.relative_error(ones[:1], ones))
