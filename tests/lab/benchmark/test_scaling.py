"""The scaling benchmark: sizes that exceed the limits are skipped."""

import torch

from lambdanets_lab.benchmark import scaling
from lambdanets_lab.benchmark.measurement import MeasureOptions, Row, measure_case
from lambdanets_lab.benchmark.options import Scaling

CPU = torch.device("cpu")


def test_sizes_above_one_that_was_too_slow_are_skipped():
    sizes = {"setting": "square map", "n": 16, "pass": "inference"}
    rows = [Row(sizes, "query_order", seconds=[5.0])]
    options = Scaling(sides=(16,), lengths=(), passes=("inference",), candidates=("query_order",), memory=1.0)
    (case,) = scaling.make_cases(options, CPU, rows)
    (row,) = measure_case(case, rows, MeasureOptions(CPU))
    assert row.skip_reason.startswith("takes 5.0 s for n = 16")


def test_sizes_that_exceed_the_memory_limit_are_skipped():
    names = ("query_order", "sdpa")
    options = Scaling(sides=(512,), lengths=(), passes=("inference",), candidates=names, memory=0.25)
    (case,) = scaling.make_cases(options, CPU, [])
    rows = measure_case(case, [], MeasureOptions(CPU))
    assert [row.candidate for row in rows] == list(names)
    assert all(row.skip_reason.startswith("would need about") for row in rows)
