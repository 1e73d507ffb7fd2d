"""The public operations in torch.compile with fullgraph=True and dynamic sizes."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from all_pairs import all_pairs
from lambdanets.ops import lambda_interaction, position_interaction
from ops.position.interactions import make_factors, make_inputs


def assert_equal_with_gradients(compiled, function, inputs, *sides):
    inputs = [x.requires_grad_() for x in inputs]
    actual, expected = compiled(*inputs, *sides), function(*inputs, *sides)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    gradients = (torch.autograd.grad(output.square().sum(), inputs, allow_unused=True) for output in (actual, expected))
    for actual_grad, expected_grad in zip(*gradients, strict=True):
        torch.testing.assert_close(actual_grad, expected_grad, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("option", ["causal", "mask"])  # multi-head: tests/layers/test_compiled_layers.py
def test_lambda_interaction_compiles_once_for_all_sizes(option):
    torch.compiler.reset()
    counter = CompileCounterWithBackend("eager")

    def function(queries, keys, values):
        n = queries.shape[2]
        embeddings = (queries[0, 0, :, None] * keys[0, None]).contiguous()  # (n, m, k)
        mask = torch.ones(n, n, dtype=torch.bool).triu(-2) if option == "mask" else None
        return lambda_interaction(queries, keys, values, embeddings, mask=mask, causal=option == "causal")

    compiled = torch.compile(function, fullgraph=True, backend=counter)
    for batch, n in ((2, 40), (3, 7), (2, 257)):
        queries, _, values = make_inputs((n,), (1,), batch=batch, dtype=torch.float32)
        assert_equal_with_gradients(compiled, function, (queries, torch.randn(batch, n, 4), values))
    assert counter.frame_count <= 2


GRIDS = {1: ((30,), (40,), (57,)), 2: ((7, 8), (9, 10), (12, 7))}


@pytest.mark.parametrize(
    ("causal", "algorithm", "dimensions", "dilation"),
    all_pairs([False, True], ["native", "row_transform"], [*GRIDS], [1, 2]),
)
def test_position_interaction_compiles_once_for_all_sizes(dimensions, algorithm, causal, dilation):
    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")  # three times as slow, for derivatives of the graph

    def function(queries, table, values, content, *sides):
        options = {"algorithm": algorithm, "causal": causal, "dilation": dilation}
        return position_interaction(queries, table, values, sides, content=content, **options)

    compiled = torch.compile(function, fullgraph=True, backend=counter)
    for batch, grid in enumerate(GRIDS[dimensions], 16):
        factors = make_factors(grid, (5, 3, 5)[:dimensions], batch=batch, dtype=torch.float32)
        assert_equal_with_gradients(compiled, function, factors, *grid)
    assert counter.frame_count <= 2
