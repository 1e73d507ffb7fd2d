import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from interactions import (
    Spy,
    assert_all_close,
    define,
    make_factors,
    make_inputs,
    run,
    run_with_content,
    supported_algorithms,
    with_gradients,
)

from all_pairs import in_turn
from lambdanets.ops import definition, position_interaction
from lambdanets.ops.position import position_term
from lambdanets.ops.position.choose import ALGORITHMS as ALGORITHM_CLASSES
from lambdanets.ops.position.position_term import prepared_tables
from ops.exactness import assert_error_within_budget

GRID, SIDES = (6, 7), (5, 5)
ALGORITHMS = supported_algorithms(*GRID)
algorithms = pytest.mark.parametrize("algorithm", ALGORITHMS)


def replace_data(table):
    table.data = table.data.flip(0).contiguous()


def write_without_version_counter(table):
    table.numpy()[0] += 1


@pytest.mark.parametrize(
    ("change", "algorithm"),
    in_turn([replace_data, write_without_version_counter], ALGORITHMS),
    ids=lambda x: getattr(x, "__name__", x),
)
def test_prepared_table_is_not_used_after_the_table_changes(change, algorithm):
    queries, table, values = make_inputs(GRID, SIDES)
    before = position_interaction(queries, table, values, GRID, algorithm=algorithm)
    change(table)
    after = position_interaction(queries, table, values, GRID, algorithm=algorithm)
    assert (after - before).abs().max() > 1e-3
    torch.testing.assert_close(after, definition.position_interaction(queries, table, values, GRID))


def test_the_oldest_prepared_tables_are_dropped_at_the_limit(monkeypatch):
    queries, table, values = make_inputs(GRID, SIDES)
    position_interaction(queries, table, values, GRID, algorithm="query_order")
    ((*_, size),) = prepared_tables.values()
    assert size > table.nbytes
    monkeypatch.setattr(position_term, "CACHE_BYTES", 5 * size)
    for other in [table + i for i in range(1, 12)]:
        position_interaction(queries, other, values, GRID, algorithm="query_order")
    assert [entry[-1] for entry in prepared_tables.values()] == [size] * 5


@algorithms
def test_inputs_stay_unchanged_and_share_no_memory_with_results(algorithm):
    factors = [x.requires_grad_() for x in make_factors((1, 1), (1, 1), batch=1, heads=1, k=1, v=1)]
    before = [x.detach().clone() for x in factors]
    output = position_interaction(*factors[:3], (1, 1), content=factors[3], algorithm=algorithm)
    results = [output, *torch.autograd.grad(output, factors, torch.ones_like(output))]
    assert all(torch.equal(*pair) for pair in zip(factors, before, strict=True))
    assert not addresses(factors) & addresses(results)


def addresses(tensors):
    return {x.untyped_storage().data_ptr() for x in tensors}


@algorithms
def test_tables_prepared_in_inference_mode_work_in_training(algorithm):
    inputs = make_inputs((5, 6), (3, 5))
    expected = run([x.clone() for x in inputs], (5, 6), algorithm=algorithm)
    inputs = [x.clone().requires_grad_() for x in inputs]
    with torch.inference_mode():
        position_interaction(*inputs, (5, 6), algorithm=algorithm)
    output = position_interaction(*inputs, (5, 6), algorithm=algorithm)
    grad_output = torch.randn(output.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    gradients = torch.autograd.grad(output, inputs, grad_output, create_graph=True)
    assert_all_close([output, *gradients], expected)
    assert all(x.isfinite().all() for x in torch.autograd.grad(sum(g.square().sum() for g in gradients), inputs))


@pytest.mark.parametrize(
    ("algorithm", "dtype"), [*((name, None) for name in ALGORITHMS), ("query_order", torch.bfloat16)]
)
def test_bfloat16_gradients_of_single_examples_stay_within_the_budget(monkeypatch, algorithm, dtype):
    spy = Spy(algorithm, max_batch=1, dtype=dtype)  # products in bfloat16 as on a GPU
    monkeypatch.setitem(ALGORITHM_CLASSES, algorithm, spy)
    # many examples but few pairs per offset, to test the sum over examples
    grid = (3, 4)
    factors = make_factors(grid, (5, 7), batch=128, v=8, dtype=torch.bfloat16)
    results = run_with_content(factors, grid, algorithm=algorithm)
    references, exact_results = (
        with_gradients(lambda *x: define(*x, grid), inputs) for inputs in (factors, [x.double() for x in factors])
    )
    for result, reference, exact in zip(results, references, exact_results, strict=True):
        assert_error_within_budget(result, reference, exact)
    assert {queries.dtype for queries in spy.queries} == {dtype or torch.float32}
    assert {len(queries) for queries in spy.queries} == {1}


@algorithms
def test_split_batch_equals_the_full_batch(monkeypatch, algorithm):
    factors = make_factors(GRID, SIDES, batch=7)
    expected = run_with_content(factors, GRID, algorithm=algorithm)
    spy = Spy(algorithm, max_batch=3)
    monkeypatch.setitem(ALGORITHM_CLASSES, algorithm, spy)
    assert_all_close(run_with_content(factors, GRID, algorithm=algorithm), expected)
    assert [len(queries) for queries in spy.queries] == [3, 3, 1]


@algorithms
def test_empty_batch_gives_empty_outputs_and_zero_table_gradient(algorithm):
    inputs = make_inputs(GRID, SIDES, batch=0)
    output, grad_queries, grad_table, grad_values = run(inputs, GRID, algorithm=algorithm)
    assert output.shape == (0, 3, math.prod(GRID), 5)
    assert (grad_queries.shape, grad_values.shape) == (inputs[0].shape, inputs[2].shape)
    assert torch.equal(grad_table, torch.zeros_like(inputs[1]))


@algorithms
def test_forward_saves_only_its_inputs(algorithm):
    inputs, saved = [x.requires_grad_() for x in make_inputs(GRID, (23, 23), u=2)], []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        position_interaction(*inputs, GRID, causal=True, algorithm=algorithm)
    assert len(saved) == 3
    assert addresses(saved) == addresses(inputs)


@algorithms
def test_bfloat16_gradients_sum_many_positions_in_float32(monkeypatch, algorithm):
    if algorithm == "query_order":  # as on a GPU
        monkeypatch.setitem(ALGORITHM_CLASSES, algorithm, Spy(algorithm, dtype=torch.bfloat16))
    n = 1024
    inputs = [torch.ones(shape).bfloat16().requires_grad_() for shape in ((1, 1, n, 1), (2 * n - 1, 1), (1, n, 1))]
    output = position_interaction(*inputs, (n,), algorithm=algorithm).sum()
    _, grad_table, grad_values = torch.autograd.grad(output, inputs)
    assert grad_table[n - 2 : n + 1, 0].tolist() == pytest.approx([n - 1, n, n - 1], rel=2**-8)
    assert grad_values.flatten().tolist() == pytest.approx([n] * n, rel=2**-7)


def test_bfloat16_content_gradient_sums_the_phases_of_a_dilation_in_float32():
    n = 771  # 3 phases of 257, which is 256 in bfloat16
    factors = [torch.ones(shape).bfloat16() for shape in ((1, 1, n, 1), (1, 1), (1, n, 1))]
    content = torch.ones(1, 1, 1).bfloat16().requires_grad_()
    position_interaction(*factors, (n,), content=content, dilation=3).sum().backward()
    assert content.grad.item() == 772  # nearest to n


@algorithms
def test_results_are_thread_safe(algorithm):
    inputs = [make_inputs(GRID, SIDES, batch=batch, heads=heads) for batch, heads in ((2, 1), (3, 2), (1, 3), (2, 4))]
    expected = [run(x, GRID, algorithm=algorithm) for x in inputs]
    with ThreadPoolExecutor(len(inputs)) as pool:
        for i, results in enumerate(pool.map(lambda x: run(x, GRID, algorithm=algorithm), 8 * inputs)):
            assert_all_close(results, expected[i % len(inputs)], 0)
