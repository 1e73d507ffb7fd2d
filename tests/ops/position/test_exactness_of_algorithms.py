"""Error budgets at realistic sizes. The reference is the lambda order, because `ops.definition` would be too slow."""

import functools

import pytest
import torch
from interactions import make_inputs, run, supported_algorithms, with_gradients

from lambdanets.ops import definition
from lambdanets.ops.tables import crop_to_grid, mask_future, pairwise_embeddings
from ops.exactness import assert_error_within_budget


def reference_interaction(queries, table, values, grid, causal):
    """Multiply embeddings of all pairs by values, then by queries."""
    table = crop_to_grid(table, grid).unsqueeze(-1)
    table = mask_future(table, len(grid)) if causal else table
    n, k = queries.shape[2:]
    embeddings = pairwise_embeddings(table, grid, 1).reshape(n, k, n)
    lambdas = torch.einsum("nkm,bmv->bnkv", embeddings, values)
    return torch.einsum("bhnk,bnkv->bhnv", queries, lambdas)


# grid, sides, causal, sizes
CASES = {
    "14x14, scope 23": ((14, 14), (23, 23), False, {"batch": 4, "heads": 4, "k": 16, "v": 16}),
    "28x28, scope 23": ((28, 28), (23, 23), False, {"batch": 2, "heads": 2, "k": 8, "v": 8}),
    "56x56, scope 23": ((56, 56), (23, 23), False, {"batch": 1, "heads": 1, "k": 2, "v": 4}),
    "1024, causal and global": ((1024,), (2047,), True, {"batch": 1, "heads": 2, "k": 8, "v": 8}),
}


@functools.cache
def reference_results(case):
    """Return float32 inputs, exact results and results of the reference; results are output, dq, dR and dV."""
    grid, sides, causal, sizes = CASES[case]
    inputs32 = make_inputs(grid, sides, **sizes, dtype=torch.float32)
    exact_results, references = (
        with_gradients(lambda *x: reference_interaction(*x, grid, causal), inputs)
        for inputs in ([x.double() for x in inputs32], inputs32)
    )
    return inputs32, exact_results, references


@pytest.mark.parametrize(
    ("case", "algorithm"), [(case, name) for case in CASES for name in supported_algorithms(*CASES[case][0])]
)
def test_float32_error_is_at_most_twice_the_reference_error(case, algorithm):
    inputs, exact_results, references = reference_results(case)
    grid, _, causal, _ = CASES[case]
    results = run(inputs, grid, causal=causal, algorithm=algorithm)
    names = ("output", "dq", "dR", "dV")
    for name, result, reference, exact in zip(names, results, references, exact_results, strict=True):
        assert_error_within_budget(result, reference, exact, name=name)


@pytest.mark.parametrize("causal", [False, True])
def test_lambda_order_reference_equals_the_definition(causal):
    inputs = make_inputs((5, 6), (5, 13))
    expected = definition.position_interaction(*inputs, (5, 6), causal=causal)
    torch.testing.assert_close(reference_interaction(*inputs, (5, 6), causal), expected)
