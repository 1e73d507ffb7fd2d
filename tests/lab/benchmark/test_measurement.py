"""Incorrect candidates are not measured, and a failing candidate does not affect the others."""

import pytest
import torch

from lambdanets_lab.benchmark.measurement import (
    NOT_REACHED,
    Candidate,
    Case,
    MeasureOptions,
    Prepared,
    measure_case,
    prepare_module,
)
from lambdanets_lab.benchmark.peers import Skipped
from lambdanets_lab.benchmark.reference import Error, compute_expected, reference_copy

OPTIONS = MeasureOptions(torch.device("cpu"), repeats=3, seconds=600.0)


def candidate(name, error=0.0, ran_names=None, run=None):
    """A candidate with this error. ran_names: list to which each run appends the name."""

    def prepare():
        return Prepared(
            run or (lambda: None if ran_names is None else ran_names.append(name)),
            lambda: {"output": Error(error, 1e-4)},
            lambda: None,
        )

    return Candidate(name, prepare)


def failing_candidate(name, error):
    """A candidate whose builder raises."""

    def prepare():
        raise error

    return Candidate(name, prepare)


def test_only_correct_candidates_are_timed():
    ran_names = []
    failing = [failing_candidate("a", Skipped("not installed")), failing_candidate("b", RuntimeError("no\nkernel"))]
    candidates = [*failing, candidate("wrong", 0.2, ran_names), candidate("right", 1e-6)]
    rows = measure_case(Case({}, candidates), [], OPTIONS)
    reason = "wrong: output has a relative error of 2.0e-01, the tolerance is 1e-04"
    assert [row.skip_reason for row in rows] == ["not installed", "RuntimeError: no kernel", reason, None]
    assert [len(row.seconds) >= 3 for row in rows] == [False, False, False, True]
    assert ran_names == ["wrong"]


def test_interrupted_case_is_marked_as_not_reached():
    calls = iter(range(6))  # one check, one for memory, two warm-up runs, two timed runs

    def run():
        if next(calls, None) is None:
            raise KeyboardInterrupt

    rows = []
    with pytest.raises(KeyboardInterrupt):
        measure_case(Case({}, [candidate("a", run=run)]), rows, OPTIONS)
    assert (len(rows[0].seconds), rows[0].skip_reason) == (2, NOT_REACHED)
    with pytest.raises(KeyboardInterrupt):
        measure_case(Case({}, [candidate("a"), candidate("b", run=run)]), rows, OPTIONS)
    assert [row.skip_reason for row in rows] == [NOT_REACHED] * 3


def test_peak_memory_excludes_gradients_of_earlier_runs():
    torch.manual_seed(0)
    module, x = torch.nn.Conv2d(4, 4, 1, bias=False), torch.randn(1, 4, 16, 16)
    gradient = torch.randn_like(x)
    prepared = prepare_module(module, x, gradient, lambda: compute_expected(reference_copy(module), x, gradient))
    rows = measure_case(Case({}, [Candidate("a", lambda: prepared), Candidate("b", lambda: prepared)]), [], OPTIONS)
    assert rows[0].peak_bytes == rows[1].peak_bytes >= 2 * x.nbytes  # output and input gradient
    assert rows[0].errors.keys() == {"output", "input gradient"}
