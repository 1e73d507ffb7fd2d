from dataclasses import replace

import pytest
import torch
from interactions import Spy, assert_all_close, make_inputs, run

import lambdanets as ln
from lambdanets.ops.position import mirrored
from lambdanets.ops.position.mixed import BoundMixed, Mixed, num_frequencies, row_tiling
from lambdanets.ops.position.plan import ALGORITHMS

# grid, sides of the table, u, causal
CASES = {
    "even last axis": ((5, 8), (3, 5), 0, False),
    "odd last axis": ((5, 7), (3, 5), 0, False),
    "one column": ((6, 1), (5, 1), 0, False),
    "two columns, larger table": ((4, 2), (7, 3), 0, False),
    "odd, causal, intra-depth": ((7, 5), (5, 9), 2, True),
    "sequence": ((11,), (7,), 0, False),
    "causal sequence": ((12,), (23,), 0, True),
    "volume": ((3, 4, 5), (3, 3, 5), 0, False),
}
cases = pytest.mark.parametrize(("grid", "sides", "u", "causal"), CASES.values(), ids=CASES.keys())


class MixedWithRows(Mixed):
    """The mixed algorithm with a fixed number of rows per tile."""

    def __init__(self, rows):
        self.rows = rows

    def bind(self, problem, rates):
        return BoundMixed(problem, row_tiling(problem.at_least_2d(), self.rows))


@cases
@pytest.mark.parametrize("rows", [1, 2, 3, 100])
def test_mixed_equals_lambda_order_for_any_number_of_rows_per_tile(monkeypatch, rows, grid, sides, u, causal):
    monkeypatch.setitem(ALGORITHMS, "mixed", MixedWithRows(rows))
    inputs = make_inputs(grid, sides, u)
    expected = run(inputs, grid, causal=causal, algorithm="lambda_order")
    assert_all_close(run(inputs, grid, causal=causal, algorithm="mixed"), expected)


@pytest.mark.parametrize("side", [1, 2, 7, 8, 31])
@pytest.mark.parametrize("scope", [1, 3, 9, 61])
def test_transform_is_long_enough_to_avoid_wrap_around(side, scope):
    inputs = make_inputs((2, side), (1, scope))
    problem = ln.plan(*inputs, (2, side)).problem
    for before, after in ((problem.before[-1], 0), (0, problem.after[-1]), (problem.before[-1], problem.after[-1])):
        asymmetric = replace(problem, before=(0, before), after=(0, after))
        assert 2 * num_frequencies(asymmetric) - 1 >= side + max(before, after)


def test_split_batch_with_a_smaller_last_part_equals_the_full_batch(monkeypatch):
    inputs = make_inputs((6, 7), (5, 5), batch=5)
    expected = run(inputs, (6, 7), algorithm="mixed")
    monkeypatch.setitem(ALGORITHMS, "mixed", Spy("mixed", max_batch=2))
    assert_all_close(run(inputs, (6, 7), algorithm="mixed"), expected)


def test_unpack_queries_is_the_adjoint_of_pack_queries():
    for side in (4, 5):
        problem = ln.plan(*make_inputs((3, side), (3, 3)), (3, side)).problem
        queries = make_inputs((3, side), (3, 3))[0]
        packed = mirrored.pack_queries(queries, problem).clone()
        grad_packed = torch.randn(packed.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        if side % 2:  # the mirrored copy of the center column is not read
            grad_packed.unflatten(3, (2, -1))[0, :, :, 1] = 0
        result = mirrored.unpack_queries(grad_packed, problem)
        torch.testing.assert_close((result * queries).sum(), (grad_packed * packed).sum())
