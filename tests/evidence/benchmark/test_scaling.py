"""Scaling: exact where it is checked, and nothing started that would not end."""

import pytest
import torch

from lambdanets.evidence.benchmark import attention, scaling
from lambdanets.evidence.benchmark.options import Scaling
from lambdanets.evidence.benchmark.race import Measuring, Row, race
from lambdanets.evidence.benchmark.reference import relative_error
from lambdanets.ops import definition

CPU = torch.device("cpu")
SMALL = Scaling(sides=(4,), lengths=(12,), repeats=3, value_depth=3, query_depth=4, heads=2, memory=1.0)


def inputs(scope, n):
    shape = (1, 2, n, 4)
    table, values = torch.randn(*scope, 4, dtype=torch.float64), torch.randn(1, n, 3, dtype=torch.float64)
    queries, keys = torch.randn(2, *shape, dtype=torch.float64)
    return scaling.Inputs(queries, keys, table, values, torch.randn(1, 2, n, 3, dtype=torch.float64))


@pytest.mark.parametrize(("grid", "causal"), [((3, 4), False), ((3, 4), True), ((12,), True)])
def test_the_positions_checked_are_those_of_the_specification(grid, causal):
    torch.manual_seed(0)
    given = inputs([2 * side - 1 for side in grid], 12)
    checked = torch.tensor([0, 5, 11])
    expected = scaling._expected_lambda(grid, causal, lambda: checked, given)
    queries = given.queries.clone().requires_grad_()
    output = definition.position_interaction(queries, given.table, given.values, grid, causal=causal)
    output.backward(given.gradient)
    assert relative_error(expected.tensors["output"], output.detach()[:, :, checked]) < 1e-12
    assert relative_error(expected.tensors["query gradient"], queries.grad[:, :, checked]) < 1e-12


def test_the_rows_of_attention_are_those_of_the_whole_matrix():
    torch.manual_seed(0)
    given = inputs((23,), 12)
    checked = torch.tensor([0, 5, 11])
    expected = scaling._expected_attention((12,), True, lambda: checked, 2, given)
    bias = attention.relative_bias(given.table[..., :2].movedim(-1, 0), (12,), causal=True)
    scores = given.queries @ given.keys.transpose(2, 3) / 2 + bias
    whole = scores.softmax(dim=-1) @ given.values.unsqueeze(1)
    assert relative_error(expected.tensors["output"], whole[:, :, checked]) < 1e-12


def test_every_algorithm_and_attention_have_a_row_with_time_and_memory():
    rows = []
    for case in scaling.cases(SMALL, CPU, rows):
        race(case, rows, Measuring(CPU, time=True, memory=True, repeats=3, seconds=600.0))
    assert [row.contestant for row in rows] == scaling.NAMES * 4
    # the fused kernels need a GPU
    assert all(bool(row.left_out) == (row.contestant == "fused") for row in rows), [row.left_out for row in rows]
    assert all(3 <= len(row.seconds) <= 9 and row.peak_bytes > 0 for row in rows if not row.left_out)  # 9 where noisy


def test_a_size_that_would_take_too_long_by_the_one_before_is_left_out():
    sizes = {"setting": "square map", "n": 16, "pass": "inference"}
    rows = [Row(sizes, "convolution", seconds=[5.0])]
    options = Scaling(sides=(16,), lengths=(), passes=("inference",), contestants=("convolution",), memory=1.0)
    (case,) = scaling.cases(options, CPU, rows)
    (row,) = race(case, rows, Measuring(CPU, time=True))
    assert row.left_out.startswith("would take about")


def test_a_size_that_would_hold_too_much_is_left_out():
    names = ("lambda_order", "sdpa")
    options = Scaling(sides=(512,), lengths=(), passes=("inference",), contestants=names, memory=0.25)
    (case,) = scaling.cases(options, CPU, [])
    rows = race(case, [], Measuring(CPU, time=True, repeats=1))
    assert [row.contestant for row in rows] == list(names)
    assert all(row.left_out.startswith("would hold about") for row in rows)
