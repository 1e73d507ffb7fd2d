import itertools
import math
import re

import pytest
import torch
from interactions import make_inputs

import lambdanets as ln
from lambdanets.ops import position_interaction
from lambdanets.ops.position import native
from lambdanets.ops.position.plan import (
    ALGORITHMS,
    WORKSPACE_LIMIT_BYTES,
    _make_plan,
    bind,
    make_plan,
    predicted_costs,
)
from lambdanets.ops.position.rates import Rates, device_rates


def plan_for(grid, sides, b=8, h=4, k=16, v=16, **options):
    n = math.prod(grid)
    shapes = (b, h, n, k), (*sides, k), (b, n, v)
    return ln.plan(*(torch.empty(shape, device="meta") for shape in shapes), grid, **options)


@pytest.fixture
def without_native(monkeypatch):
    """As installed without a compiler."""
    monkeypatch.setattr(native, "library", lambda: None)
    _make_plan.cache_clear()
    yield
    _make_plan.cache_clear()


def test_plan_chooses_the_native_engine_on_cpus(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)  # the predictions depend on it
    _make_plan.cache_clear()
    if native.library() is None:
        pytest.skip("the package was installed without a compiler, so without the native engine")
    for grid, sides in (((56, 56), (23, 23)), ((28, 28), (23, 23)), ((8, 14, 14), (15, 27, 27))):
        plan = plan_for(grid, sides)
        costs = {name: cost.total_seconds for name, cost in plan.costs.items() if cost is not None}
        assert costs["native"] < 2 * min(costs.values())  # with the narrowest vectors it may be slower
        if native.library().lanes[0] == 16:
            assert (plan.chosen, plan.backward) == ("native", "native")
    plan = plan_for((56, 56), (23, 23), causal=True)  # NaN in the future would reach the past
    assert "native" not in (plan.chosen, plan.backward)
    assert "causal" in str(plan)


@pytest.mark.usefixtures("without_native")
def test_plan_chooses_query_order_for_small_maps_or_scopes():
    assert {plan_for((side, side), (23, 23), v=64).chosen for side in (7, 14)} == {"query_order"}
    assert {plan_for((side, side), (7, 7), v=32).chosen for side in (14, 28, 56)} == {"query_order"}


@pytest.mark.usefixtures("without_native")
def test_plan_chooses_mixed_for_large_scopes_on_large_maps():
    plan = plan_for((56, 56), (23, 23))
    assert (plan.chosen, plan.backward) == ("mixed", "mixed")


@pytest.mark.usefixtures("without_native")
def test_plan_chooses_fourier_for_long_sequences_and_global_scopes():
    assert plan_for((65536,), (2 * 65536 - 1,), b=1, causal=True).chosen == "fourier"
    assert plan_for((256, 256), (511, 511), b=1).chosen == "fourier"


def test_plan_prefers_algorithms_below_the_workspace_limit(monkeypatch):
    default = plan_for((56, 56), (23, 23), b=1)
    limit = default.costs["mixed"].workspace_bytes - 1
    monkeypatch.setattr("lambdanets.ops.position.plan.WORKSPACE_LIMIT_BYTES", limit)
    plan = plan_for((56, 56), (23, 23))
    assert plan.chosen != "mixed"
    assert plan.costs[plan.chosen].workspace_bytes <= limit


@pytest.mark.usefixtures("without_native")
def test_large_batches_are_split_instead_of_slower():
    for side, scope in ((224, 3), (160, 5)):
        single, plan = (plan_for((side, side), (scope, scope), b=b) for b in (1, 32))
        assert plan.chosen == plan.backward == "query_order"
        assert max(plan.costs["query_order"].workspaces) <= WORKSPACE_LIMIT_BYTES
        assert plan.costs["query_order"].seconds < 32 * single.costs["query_order"].seconds


def test_a_split_batch_gives_the_same_result(monkeypatch):
    inputs = make_inputs((6, 5), (3, 3), 0)
    expected = position_interaction(*inputs, (6, 5), algorithm="query_order")
    monkeypatch.setattr("lambdanets.ops.position.plan.WORKSPACE_LIMIT_BYTES", 1)
    assert bind(ln.plan(*inputs, (6, 5)).problem, "query_order")[0].problem.batch == 1
    torch.testing.assert_close(position_interaction(*inputs, (6, 5), algorithm="query_order"), expected)


def test_plan_prints_every_algorithm_and_marks_its_choice():
    plan = ln.plan(*make_inputs((4, 4), (3, 3), 0), (4, 4))
    assert all(name in str(plan) for name in ALGORITHMS)
    assert re.search(rf"\*.? *{plan.chosen}", str(plan))


def test_rejects_an_algorithm_that_does_not_support_the_problem():
    message = r"grid of \(4, 4\), got 'fused', which supports grids with 1 or 2 dimensions.*on CUDA devices"
    for function in ln.plan, position_interaction:
        with pytest.raises(ValueError, match=message):
            function(*make_inputs((4, 4), (3, 3), 0), (4, 4), algorithm="fused")


def test_plan_prints_a_dash_for_unsupported_algorithms():
    plan = ln.plan(*make_inputs((2, 4, 3), (3, 3, 5), 0), (2, 4, 3))
    (line,) = [line.split() for line in str(plan).splitlines() if "fused" in line]
    assert line == ["fused", *"----"]
    assert plan.costs["fused"] is None


def test_explicit_algorithm_is_used_even_if_slow():
    plan = plan_for((128, 128), (3, 3), algorithm="lambda_order")
    assert (plan.chosen, plan.backward) == ("lambda_order", "lambda_order")
    assert plan_for((128, 128), (3, 3)).chosen != "lambda_order"


PROBLEMS = {
    "map": ((28, 28), (23, 23)),
    "small map": ((7, 7), (23, 23)),
    "small scope": ((56, 56), (7, 7)),
    "sequence": ((1024,), (2047,)),
    "volume": ((8, 14, 14), (3, 7, 7)),
}
problems = pytest.mark.parametrize(("grid", "sides"), PROBLEMS.values(), ids=PROBLEMS.keys())


@problems
def test_costs_are_positive_and_grow_with_the_batch(grid, sides):
    plans = [plan_for(grid, sides, b=b).costs for b in (1, 4, 64)]
    for name, cost in plans[0].items():
        if cost is None:
            continue
        times = [(costs[name].seconds, costs[name].backward_seconds, costs[name].operations) for costs in plans]
        assert all(value > 0 for value in (*times[0], cost.workspace_bytes)), name
        for smaller, larger in itertools.pairwise(times):
            assert all(small < large for small, large in zip(smaller, larger, strict=True)), name


@problems
def test_meta_tensors_have_the_same_plan_as_cpu_tensors(grid, sides):
    n = math.prod(grid)
    shapes = (2, 4, n, 16), (*sides, 16), (2, n, 16)
    meta, cpu = (ln.plan(*(torch.empty(shape, device=device) for shape in shapes), grid) for device in ("meta", "cpu"))
    assert (meta.chosen, meta.backward, meta.costs) == (cpu.chosen, cpu.backward, cpu.costs)


@problems
def test_predicted_costs_equal_the_costs_of_the_plan(grid, sides):
    plan = plan_for(grid, sides)
    assert predicted_costs(plan.problem, device_rates("cpu")) == plan.costs


@pytest.mark.usefixtures("without_native")
def test_plan_depends_on_the_device_rates(monkeypatch):
    problem = plan_for((56, 56), (23, 23)).problem
    slow_products = Rates(1e6, 5, 8e9, 6e-6, 9e9, 0.6)
    monkeypatch.setattr("lambdanets.ops.position.plan.device_rates", lambda device: slow_products)
    assert make_plan(problem).chosen == "fourier"


def test_plan_chooses_the_smallest_workspace_if_all_exceed_the_limit(monkeypatch):
    monkeypatch.setattr("lambdanets.ops.position.plan.WORKSPACE_LIMIT_BYTES", 1)
    plan = plan_for((28, 28), (23, 23))
    smallest = min(cost.workspace_bytes for cost in plan.costs.values() if cost is not None)
    assert plan.costs[plan.chosen].workspace_bytes == plan.costs[plan.backward].workspace_bytes == smallest


def test_empty_batch_is_planned_as_one_example():
    assert plan_for((14, 14), (7, 7), b=0) == plan_for((14, 14), (7, 7), b=1)
