"""Incorrect candidates and too large sizes are not measured, and a failing candidate does not affect the others."""

from dataclasses import replace

import torch

from lambdanets_lab.benchmark import scaling
from lambdanets_lab.benchmark.measurement import Case, Prepared, Row, measure_case, peak_bytes
from lambdanets_lab.benchmark.options import Scaling
from lambdanets_lab.benchmark.peers import Skipped

CPU = torch.device("cpu")
MIB = 2**20


def measure(**candidates):
    return measure_case(Case({}, candidates), CPU, repeats=3, seconds=600.0)


def candidate(error=0.0, run=lambda: None):
    def function(x):
        run()
        return x + error

    return lambda: Prepared(function, (torch.ones(4),), expected=lambda: {"output": torch.ones(4)})


def failing(error):
    """A candidate whose builder raises."""

    def prepare():
        raise error

    return prepare


def test_only_correct_candidates_are_timed():
    runs = []
    wrong = candidate(0.2, lambda: runs.append("wrong"))
    missing, broken = failing(Skipped("not installed")), failing(RuntimeError("no\nkernel"))
    rows = measure(a=missing, b=broken, c=wrong, d=candidate(1e-6))
    reason = "wrong: output has a relative error of 2.0e-01, the tolerance is 1e-04"
    assert [row.skip_reason for row in rows] == ["not installed", "RuntimeError: no kernel", reason, None]
    assert [len(row.seconds) >= 3 for row in rows] == [False, False, False, True]
    assert runs == ["wrong"]


def test_memory_of_a_training_pass_includes_its_gradients():
    module, x = torch.nn.Conv2d(4, 4, 1, bias=False), torch.randn(1, 4, 16, 16, requires_grad=True)
    prepared = Prepared(module, (x,), torch.randn_like(x), [*module.parameters()])
    (row,) = measure(a=lambda: replace(prepared, expected=prepared.run))
    assert row.peak_bytes >= 2 * x.nbytes  # output and input gradient
    assert row.errors == {"output": 0.0, "input gradient": 0.0}


def test_peak_is_the_sum_of_simultaneous_allocations():
    def work():
        first = torch.empty(MIB, dtype=torch.uint8)
        second = torch.empty(2 * MIB, dtype=torch.uint8)
        del first, second
        torch.empty(2 * MIB, dtype=torch.uint8)

    assert peak_bytes(work, CPU) == 3 * MIB
    assert peak_bytes(torch.ones(MIB).sigmoid_, CPU) == 0


def test_sizes_of_scaling_that_take_too_long_are_skipped():
    rows = [Row({"setting": "square map", "n": 9, "pass": "inference"}, "query_order", seconds=[5.0])]
    options = Scaling(sides=(16,), lengths=(), passes=("inference",), candidates=("query_order",))
    (case,) = scaling.make_cases(options, CPU, rows)
    (row,) = measure_case(case, CPU, repeats=3, seconds=1.0)
    assert row.skip_reason.startswith("takes 5.0 s for n = 9")
