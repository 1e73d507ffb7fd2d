from dataclasses import replace

import pytest
import torch
from interactions import assert_all_close, make_inputs, run

from lambdanets.ops import explain
from lambdanets.ops.position import query_order
from lambdanets.ops.position.plan import ALGORITHMS
from lambdanets.ops.position.rates import built_in
from lambdanets.ops.position.tiling import Tiling

# grid, sides of the table, u, causal, tiles
GRIDS = {
    "plane": ((7, 9), (5, 3), 0, False, [(7, 9), (1, 9), (2, 4), (3, 2), (7, 2)]),
    "plane, intra-depth, causal": ((7, 9), (5, 5), 2, True, [(7, 9), (2, 9), (4, 4)]),
    "sequence": ((13,), (5,), 0, False, [(1, 13), (1, 4), (1, 1)]),
    "causal sequence": ((13,), (25,), 0, True, [(1, 13)]),
    "volume": ((3, 5, 4), (3, 3, 3), 0, False, [(3, 5, 4), (2, 2, 4), (1, 2, 2)]),
}
CASES = [
    pytest.param(*case[:4], tile, id=f"{id}, {'x'.join(map(str, tile))}")
    for id, case in GRIDS.items()
    for tile in case[4]
]


@pytest.mark.parametrize(("grid", "sides", "u", "causal", "tile"), CASES)
def test_every_tiling_gives_what_the_lambda_order_gives(monkeypatch, grid, sides, u, causal, tile):
    monkeypatch.setattr(query_order, "tiling_of", lambda problem, rates: Tiling(problem.as_plane(), tile))
    inputs = make_inputs(grid, sides, u)
    expected = run(inputs, grid, causal=causal, algorithm="lambda_order")
    assert_all_close(run(inputs, grid, causal=causal, algorithm="query_order"), expected)


@pytest.mark.parametrize("least", [0, 1 << 60], ids=["one by one", "in a batch"])
def test_the_gradient_of_logits_is_the_same_by_single_products_and_in_a_batch(monkeypatch, least):
    monkeypatch.setattr(query_order, "_WORTH_A_CALL", least)
    inputs = make_inputs((6, 7), (5, 5))
    expected = run(inputs, (6, 7), algorithm="lambda_order")
    assert_all_close(run(inputs, (6, 7), algorithm="query_order"), expected)


def test_a_smaller_limit_on_the_logits_takes_several_chunks_of_examples_and_changes_nothing(monkeypatch):
    inputs = make_inputs((6, 7), (5, 5), batch=5)
    expected = run(inputs, (6, 7), algorithm="query_order")
    chunks = []
    forward = query_order.forward

    def counted(queries, *others):
        chunks.append(len(queries))
        return forward(queries, *others)

    monkeypatch.setattr(query_order, "forward", counted)
    monkeypatch.setattr(query_order, "examples_at_once", lambda problem, rates: 2)
    assert_all_close(run(inputs, (6, 7), algorithm="query_order"), expected)
    assert chunks == [2, 2, 1]


@pytest.mark.parametrize("algorithm", ["lambda_order", "convolution", "mixed"])
def test_more_examples_stay_in_the_cache_of_a_gpu_than_of_a_core(algorithm):
    problem = explain(*make_inputs((28, 28), (23, 23), batch=256, dtype=torch.float32), (28, 28)).problem
    module, rates = ALGORITHMS[algorithm], built_in("cpu", 1)
    counts = [module.examples_at_once(replace(problem, device=device), rates) for device in ("cpu", "cuda:0")]
    assert 1 <= counts[0] < counts[1]


def test_the_logits_of_the_chosen_tiling_stay_within_the_limit():
    limit, _ = query_order._LOGITS_BYTES
    inputs = make_inputs((28, 28), (23, 23), batch=1, dtype=torch.float32)
    problem = explain(*inputs, (28, 28)).problem
    assert query_order.tiling_of(problem, built_in("cpu", 1)).logits_bytes(1) <= limit
