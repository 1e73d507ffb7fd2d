"""Tests that "auto" uses fused kernels only after they were right, without the kernels.

test_fused_kernels.py has the check of the interpreted kernels.
"""

import warnings

import pytest
import torch
from interactions import assert_all_close, make_inputs
from torch._subclasses.fake_tensor import FakeTensorMode

from lambdanets.errors import KernelWarning
from lambdanets.ops import plan, position_interaction
from lambdanets.ops.position import fused_check
from lambdanets.ops.position.choose import choose

pytest.importorskip("triton", reason="the kernels need Triton")

GRID, KERNEL = (7, 7), "forward"
INPUTS = make_inputs(GRID, (13, 13), heads=4, k=16, v=16, dtype=torch.float32)
PROBLEM = plan(*INPUTS, GRID, algorithm="query_order").problem


class Kernels:
    """Kernels that are right except for `faults`: kernels and functions of the exact result."""

    def __init__(self):
        self.faults, self.runs = {}, 0

    def run(self, example, kernel):
        self.runs += kernel == KERNEL
        return self.faults.get(kernel, torch.clone)(example.exact[kernel]).to(example.problem.dtype)


def raise_error(error):
    raise error


def chosen():
    """The algorithm for PROBLEM without stored plans."""
    choose.cache_clear()
    return choose(PROBLEM).algorithm


@pytest.fixture
def kernels(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(fused_check, "CASES", (fused_check.Case(1, 2, (2, 3), (3, 3), 16, 16),))
    replaced = Kernels()
    monkeypatch.setattr(fused_check.Example, "run", lambda *arguments: replaced.run(*arguments))
    fused_check.failures.cache_clear()
    yield replaced
    fused_check.failures.cache_clear()


def test_right_kernels_are_checked_once(kernels):
    assert (chosen(), chosen(), kernels.runs) == ("fused", "fused", 1)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (lambda exact: raise_error(RuntimeError("a\nb")), "raises RuntimeError: a b"),
        (lambda exact: exact + 1, "is wrong: max relative error"),
        (lambda exact: exact * torch.nan, "is wrong: max relative error nan"),
    ],
    ids=["raises", "wrong", "NaN"],
)
def test_failing_kernel_is_replaced_with_one_warning(fault, reason, kernels):
    kernels.faults[KERNEL] = fault
    with pytest.warns(KernelWarning, match=f"for torch.float32: {KERNEL} {reason}.*torch .*lambdanets"):
        result = position_interaction(*INPUTS, GRID)
    exact = position_interaction(*(x.double() for x in INPUTS), GRID, algorithm="query_order")
    assert_all_close([result.double()], [exact], 1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert chosen() != "fused"
    assert KERNEL in choose(PROBLEM).notes["fused"]
    assert kernels.runs == 1


def test_out_of_memory_is_raised_and_not_stored(kernels):
    kernels.faults[KERNEL] = lambda exact: raise_error(torch.OutOfMemoryError("CUDA"))
    with pytest.raises(torch.OutOfMemoryError):
        position_interaction(*INPUTS, GRID)
    kernels.faults.clear()
    assert chosen() == "fused"


@pytest.mark.parametrize(
    "mode",
    [torch.inference_mode(), FakeTensorMode(), torch.device("meta"), torch.autocast("cpu")],
    ids=lambda mode: type(mode).__name__,
)
def test_check_does_not_run_in_the_mode_of_the_caller(mode, kernels):
    with mode:
        assert chosen() == "fused"


def test_kernels_chosen_by_name_need_no_check(kernels):
    assert choose(PROBLEM, "fused").algorithm == "fused"
    assert choose(PROBLEM, "query_order").algorithm == "query_order"
    assert kernels.runs == 0
