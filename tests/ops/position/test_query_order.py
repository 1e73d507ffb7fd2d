import pytest
from interactions import assert_all_close, make_inputs, run

from lambdanets.ops.position.choose import ALGORITHMS
from lambdanets.ops.position.query_order import QueryOrder
from lambdanets.ops.position.windows import Tiling

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


class TiledQueryOrder(QueryOrder):
    """Query order with a fixed tile."""

    def __init__(self, problem):
        super().__init__(problem)
        self._tiling = Tiling(problem.at_least_2d(), self.tile)


@pytest.mark.parametrize(("grid", "sides", "u", "causal", "tile"), CASES)
def test_query_order_equals_row_transform_for_any_tiling(monkeypatch, grid, sides, u, causal, tile):
    monkeypatch.setattr(TiledQueryOrder, "tile", tile, raising=False)
    monkeypatch.setitem(ALGORITHMS, "query_order", TiledQueryOrder)
    inputs = make_inputs(grid, sides, u)
    expected = run(inputs, grid, causal=causal, algorithm="row_transform")
    assert_all_close(run(inputs, grid, causal=causal, algorithm="query_order"), expected)
