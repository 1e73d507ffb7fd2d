"""A case: who is wrong is not measured, who fails does not stop the others."""

import pytest
import torch

from lambdanets.evidence.benchmark.peers import LeftOut
from lambdanets.evidence.benchmark.race import (
    NOT_REACHED,
    Case,
    Contestant,
    Measuring,
    Prepared,
    plain_float32,
    prepare_module,
    race,
)
from lambdanets.evidence.benchmark.reference import Error, expected_of, plain_copy

TIMING = Measuring(torch.device("cpu"), time=True, repeats=3, seconds=600.0)


def contestant(name, error=0.0, ran=None, work=None):
    def prepare():
        return Prepared(
            work or (lambda: None if ran is None else ran.append(name)),
            lambda: {"output": Error(error, 1e-4)},
            lambda: None,
        )

    return Contestant(name, prepare)


def failing(name, error):
    def prepare():
        raise error

    return Contestant(name, prepare)


def test_a_wrong_contestant_runs_once_to_be_checked_and_is_never_timed():
    ran = []
    rows = race(Case({}, [contestant("right", 1e-6), contestant("wrong", 0.2, ran)]), [], TIMING)
    assert ran == ["wrong"]
    assert len(rows[0].seconds) >= 3
    assert rows[1].seconds == []
    assert rows[1].left_out.startswith("wrong: output is off by 2.0e-01 relative to float64")


def test_what_is_not_a_number_is_wrong():
    (row,) = race(Case({}, [contestant("nan", float("nan"))]), [], TIMING)
    assert row.left_out.startswith("wrong")


def test_a_contestant_that_fails_is_left_out_with_the_reason_and_the_others_are_timed():
    case = Case({}, [failing("a", LeftOut("not installed")), failing("b", RuntimeError("no\nkernel")), contestant("c")])
    rows = race(case, [], TIMING)
    assert [row.left_out for row in rows] == ["not installed", "RuntimeError: no kernel", None]
    assert [len(row.seconds) >= 3 for row in rows] == [False, False, True]


def test_interrupted_case_counts_as_not_reached_however_much_was_measured():
    left = iter(range(5))  # one to check, two to warm up, two that are timed

    def work():
        if next(left, None) is None:
            raise KeyboardInterrupt

    rows = []
    with pytest.raises(KeyboardInterrupt):
        race(Case({}, [contestant("a", work=work)]), rows, TIMING)
    assert (len(rows[0].seconds), rows[0].left_out) == (2, NOT_REACHED)
    with pytest.raises(KeyboardInterrupt):
        race(Case({}, [contestant("a"), contestant("b", work=work)]), rows, TIMING)
    assert [row.left_out for row in rows] == [NOT_REACHED] * 3


def test_memory_is_measured_without_the_gradients_of_the_run_before():
    torch.manual_seed(0)
    module, x = torch.nn.Conv2d(4, 4, 1, bias=False), torch.randn(1, 4, 16, 16)
    gradient = torch.randn_like(x)
    prepared = prepare_module(module, x, gradient, lambda: expected_of(plain_copy(module), x, gradient))
    measuring = Measuring(torch.device("cpu"), memory=True)
    rows = race(Case({}, [Contestant("a", lambda: prepared), Contestant("b", lambda: prepared)]), [], measuring)
    assert rows[0].peak_bytes == rows[1].peak_bytes >= 2 * x.nbytes  # output and input gradient
    assert rows[0].errors.keys() == {"output", "input gradient"}


def test_threads_and_precision_are_as_before_afterwards():
    before = torch.get_num_threads(), torch.backends.cudnn.allow_tf32
    with plain_float32(threads=before[0] + 1):
        assert torch.get_num_threads() == before[0] + 1
        assert not torch.backends.cudnn.allow_tf32
    assert (torch.get_num_threads(), torch.backends.cudnn.allow_tf32) == before


def test_a_lack_of_memory_is_said_without_the_words_of_the_allocator():
    message = "[enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory: you tried ..."
    (row,) = race(Case({}, [failing("a", RuntimeError(message))]), [], TIMING)
    assert row.left_out == "out of memory"
