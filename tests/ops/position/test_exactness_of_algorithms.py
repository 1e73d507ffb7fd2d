"""Error budgets at realistic sizes, with the lambda order as reference, because the definition would be too slow."""

import functools

import pytest
import torch
from interactions import make_inputs, run, supported_algorithms, with_gradients

from lambdanets.ops import definition
from lambdanets.ops.geometry import crop_to_grid, mask_future, pairwise_embeddings
from ops.exactness import assert_error_within_budget


def in_lambda_order(queries, table, values, grid, causal):
    """The plain formula: pairwise embeddings times values, then times queries."""
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
    "56x56, scope 23": ((56, 56), (23, 23), False, {"batch": 1, "heads": 1, "k": 4, "v": 4}),
    "1024, causal and global": ((1024,), (2047,), True, {"batch": 1, "heads": 2, "k": 8, "v": 8}),
}


@functools.cache
def reference(case):
    """Inputs in float32, the exact results and those of the plain formula: output, dq, dR, dv."""
    grid, sides, causal, sizes = CASES[case]
    low = make_inputs(grid, sides, **sizes, dtype=torch.float32)
    exact, plain = (
        with_gradients(lambda *x: in_lambda_order(*x, grid, causal), inputs)
        for inputs in ([x.double() for x in low], low)
    )
    return low, exact, plain


@pytest.mark.parametrize(
    ("case", "name"), [(case, name) for case in CASES for name in supported_algorithms(*CASES[case][0])]
)
def test_float32_errors_are_at_most_twice_those_of_the_plain_formula(case, name):
    low, exact, plain = reference(case)
    grid, _, causal, _ = CASES[case]
    results = run(low, grid, causal=causal, algorithm=name)
    for what, fast, other, truth in zip(("output", "dq", "dR", "dv"), results, plain, exact, strict=True):
        assert_error_within_budget(fast, other, truth, what=what)


@pytest.mark.parametrize("causal", [False, True])
def test_lambda_order_reference_equals_the_definition(causal):
    inputs = make_inputs((5, 6), (5, 13))
    expected = definition.position_interaction(*inputs, (5, 6), causal=causal)
    torch.testing.assert_close(in_lambda_order(*inputs, (5, 6), causal), expected)
