import math
import re

import pytest
import torch
from interactions import make_inputs, needs_native

import lambdanets as ln
from lambdanets.ops import position_interaction
from lambdanets.ops.position import native
from lambdanets.ops.position.choose import ALGORITHMS, WORKSPACE_LIMIT_BYTES, choose


def plan_for(grid, sides, b=8, h=4, k=16, v=16, **options):
    n = math.prod(grid)
    shapes = (b, h, n, k), (*sides, k), (b, n, v)
    return ln.plan(*(torch.empty(shape, device="meta") for shape in shapes), grid, **options)


@pytest.fixture
def without_native(monkeypatch):
    """As installed without a compiler."""
    monkeypatch.setattr(native, "load_library", lambda: None)


@needs_native
def test_native_is_chosen_on_cpus():
    for grid, sides, causal in (((56, 56), (23, 23), False), ((28, 28), (7, 7), True), ((4096,), (8191,), True)):
        plan = plan_for(grid, sides, causal=causal)
        assert plan.algorithm == "native"
        assert f"library {native.load_library().name}" in str(plan)


@pytest.mark.usefixtures("without_native")
def test_row_transform_is_chosen_only_for_large_windows_without_native():
    for grid, sides in (((7, 7), (3, 3)), ((56, 56), (3, 3)), ((14, 14), (23, 23))):
        assert plan_for(grid, sides, v=64).algorithm == "query_order"
    for grid, sides in (((56, 56), (23, 23)), ((65536,), (131_071,)), ((8, 128, 128), (5, 23, 23))):
        plan = plan_for(grid, sides, b=1)
        assert plan.algorithm == "row_transform"
        assert plan.costs[plan.algorithm].workspace_bytes <= WORKSPACE_LIMIT_BYTES
        assert "no compiled library" in str(plan)


def test_the_smallest_workspace_is_chosen_if_all_exceed_the_limit(monkeypatch):
    monkeypatch.setattr("lambdanets.ops.position.choose.WORKSPACE_LIMIT_BYTES", 1)
    choose.cache_clear()
    plan = plan_for((56, 56), (23, 23), b=1)
    workspaces = [cost.workspace_bytes for cost in plan.costs.values() if cost]
    assert plan.costs[plan.algorithm].workspace_bytes == min(workspaces)


def test_numbers_of_16_bits_are_counted_as_the_float32_in_which_they_are_computed():
    shapes = (8, 4, 49, 16), (3, 3, 16), (8, 49, 16)
    plans = [
        ln.plan(*(torch.empty(shape, device="meta", dtype=dtype) for shape in shapes), (7, 7))
        for dtype in (torch.float32, torch.bfloat16, torch.float16)
    ]
    assert plans[0].costs == plans[1].costs == plans[2].costs


@pytest.mark.usefixtures("without_native")
def test_large_batches_are_split_instead_of_slower():
    for side, scope in ((224, 3), (160, 5)):
        single, plan = (plan_for((side, side), (scope, scope), b=b) for b in (1, 32))
        assert plan.algorithm == "query_order"
        cost = plan.costs["query_order"]
        assert cost.workspace_bytes <= WORKSPACE_LIMIT_BYTES
        assert cost.work <= 33 * single.costs["query_order"].work


def test_sides_beyond_the_transforms_of_native_are_possible():
    assert plan_for((5000, 5000), (23, 23), b=1).algorithm == plan_for((500, 500), (23, 23), b=1).algorithm
    long = plan_for((3, 3000), (5, 4001), b=1)
    assert "at most 4096" in long.notes["native"] or "no compiled library" in long.notes["native"]
    inputs = make_inputs((5000, 2), (3, 3), batch=1, heads=1, k=1, v=1)
    results = [position_interaction(*inputs, (5000, 2), algorithm=name) for name in ("auto", "query_order")]
    torch.testing.assert_close(*results)


def test_plan_prints_every_algorithm_and_marks_its_choice():
    plan = ln.plan(*make_inputs((4, 4), (3, 3), 0), (4, 4))
    assert all(name in str(plan) for name in ALGORITHMS)
    work = 2e-9 * plan.costs[plan.algorithm].work
    assert re.search(rf"^\* {plan.algorithm} +{work:.3f} ", str(plan), re.MULTILINE)


def test_an_algorithm_that_does_not_support_the_problem_is_refused():
    for function in ln.plan, position_interaction:
        with pytest.raises(ValueError, match="'fused' supports grids with"):
            function(*make_inputs((4, 4), (3, 3), 0), (4, 4), algorithm="fused")
