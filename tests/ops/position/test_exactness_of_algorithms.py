"""Error budgets of outputs and gradients: at most twice the error of a reference in the same dtype."""

import functools

import pytest
import torch
from interactions import make_factors, run_with_content, supported_algorithms, with_gradients

from all_pairs import all_pairs
from lambdanets.ops.tables import mask_future, pairwise_embeddings
from ops.exactness import assert_error_within_budget

# grid, sides, causal, sizes
CASES = {
    "6x5, intra-depth": ((6, 5), (3, 5), False, {"u": 2, "k": 16, "v": 8}),
    "14x14, scope 23": ((14, 14), (23, 23), False, {"batch": 4, "heads": 4, "k": 16, "v": 16}),
    "28x28, scope 23": ((28, 28), (23, 23), False, {"heads": 2, "k": 8, "v": 8}),
    "56x56, scope 23": ((56, 56), (23, 23), False, {"batch": 1, "heads": 1, "k": 2, "v": 4}),
    "1024, causal and global": ((1024,), (2047,), True, {"batch": 1, "heads": 2, "k": 8, "v": 8}),
}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def multiply_lambdas(queries, table, values, content, grid, causal):
    """The definition with another order of loops: multiply embeddings of all pairs by values, then by queries."""
    n, k = queries.shape[2:]
    if values.ndim == 3:
        table, values = table.unsqueeze(-1), values.unsqueeze(-1)
    table = mask_future(table, len(grid)) if causal else table
    embeddings = pairwise_embeddings(table, grid, 1).reshape(n, k, -1, n)
    lambdas = torch.einsum("nkum,bmvu->bnkv", embeddings, values)
    return torch.einsum("bhnk,bnkv->bhnv", queries, lambdas) + queries @ content.unsqueeze(1)


@functools.cache
def make_case(case, dtype):
    """Return factors, and exact results and those of `multiply_lambdas`: output, dq, dR, dV and dC."""
    grid, sides, causal, sizes = CASES[case]
    factors = make_factors(grid, sides, **sizes, dtype=dtype)
    exact_results, references = (
        with_gradients(lambda *x: multiply_lambdas(*x, grid, causal), x)
        for x in ([x.double() for x in factors], factors)
    )
    return factors, exact_results, references


@pytest.mark.parametrize(("case", "dtype", "algorithm"), all_pairs([*CASES], DTYPES, supported_algorithms(4, 4)))
def test_errors_are_at_most_twice_those_of_the_reference(case, dtype, algorithm):
    factors, exact_results, references = make_case(case, dtype)
    grid, _, causal, _ = CASES[case]
    results = run_with_content(factors, grid, causal=causal, algorithm=algorithm)
    names = ("output", "dq", "dR", "dV", "dC")
    for name, result, reference, exact in zip(names, results, references, exact_results, strict=True):
        assert result.dtype == dtype
        assert_error_within_budget(result, reference, exact, name=name)
