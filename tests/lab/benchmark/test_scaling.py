"""The scaling benchmark: expected values are exact, and sizes that exceed the limits are skipped."""

import pytest
import torch

from lambdanets.ops import definition
from lambdanets_lab.benchmark import attention, scaling
from lambdanets_lab.benchmark.measurement import MeasureOptions, Row, measure_case
from lambdanets_lab.benchmark.options import Scaling
from lambdanets_lab.benchmark.reference import relative_error

CPU = torch.device("cpu")
SMALL = Scaling(sides=(4,), lengths=(12,), repeats=3, value_depth=3, query_depth=4, heads=2, memory=1.0)


def make_inputs(table_sides, n):
    shape = (1, 2, n, 4)
    table, values = torch.randn(*table_sides, 4, dtype=torch.float64), torch.randn(1, n, 3, dtype=torch.float64)
    queries, keys = torch.randn(2, *shape, dtype=torch.float64)
    return scaling.Inputs(queries, keys, table, values, torch.randn(1, 2, n, 3, dtype=torch.float64))


@pytest.mark.parametrize(("grid", "causal"), [((3, 4), False), ((3, 4), True), ((12,), True)])
def test_expected_lambda_equals_the_definition(grid, causal):
    torch.manual_seed(0)
    inputs = make_inputs([2 * side - 1 for side in grid], 12)
    checked_positions = torch.tensor([0, 5, 11])
    expected = scaling._expected_lambda(grid, causal, lambda: checked_positions, inputs)
    queries = inputs.queries.clone().requires_grad_()
    output = definition.position_interaction(queries, inputs.table, inputs.values, grid, causal=causal)
    output.backward(inputs.grad_output)
    assert relative_error(expected.tensors["output"], output.detach()[:, :, checked_positions]) < 1e-12
    assert relative_error(expected.tensors["query gradient"], queries.grad[:, :, checked_positions]) < 1e-12


def test_expected_attention_equals_full_attention():
    torch.manual_seed(0)
    inputs = make_inputs((23,), 12)
    checked_positions = torch.tensor([0, 5, 11])
    expected = scaling._expected_attention((12,), True, lambda: checked_positions, 2, inputs)
    bias = attention.relative_bias(inputs.table[..., :2].movedim(-1, 0), (12,), causal=True)
    scores = inputs.queries @ inputs.keys.transpose(2, 3) / 2 + bias
    full = scores.softmax(dim=-1) @ inputs.values.unsqueeze(1)
    assert relative_error(expected.tensors["output"], full[:, :, checked_positions]) < 1e-12


def test_sizes_above_one_that_was_too_slow_are_skipped():
    sizes = {"setting": "square map", "n": 16, "pass": "inference"}
    rows = [Row(sizes, "query_order", seconds=[5.0])]
    options = Scaling(sides=(16,), lengths=(), passes=("inference",), candidates=("query_order",), memory=1.0)
    (case,) = scaling.make_cases(options, CPU, rows)
    (row,) = measure_case(case, rows, MeasureOptions(CPU, time=True))
    assert row.skip_reason.startswith("takes 5.0 s for n = 16")


def test_sizes_that_exceed_the_memory_limit_are_skipped():
    names = ("query_order", "sdpa")
    options = Scaling(sides=(512,), lengths=(), passes=("inference",), candidates=names, memory=0.25)
    (case,) = scaling.make_cases(options, CPU, [])
    rows = measure_case(case, [], MeasureOptions(CPU, time=True, repeats=1))
    assert [row.candidate for row in rows] == list(names)
    assert all(row.skip_reason.startswith("would need about") for row in rows)
