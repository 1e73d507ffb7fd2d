import pytest
from interactions import assert_all_close, make_inputs, run

from all_pairs import all_pairs
from lambdanets.ops.position import row_transform
from lambdanets.ops.position.choose import ALGORITHMS
from lambdanets.ops.position.row_transform import RowTransform, choose_rows

# grid, sides of the table, u, causal
CASES = {
    "even last axis": ((5, 8), (3, 5), 0, False),
    "odd last axis": ((5, 7), (3, 5), 0, False),
    "one column": ((6, 1), (5, 1), 0, False),
    "two columns, larger table": ((4, 2), (7, 3), 0, False),
    "odd, causal, intra-depth": ((7, 5), (5, 9), 2, True),
    "sequence": ((11,), (7,), 0, False),
    "causal sequence": ((12,), (23,), 0, True),
    "volume": ((3, 4, 5), (3, 3, 5), 0, False),
    "causal volume, intra-depth": ((4, 3, 5), (7, 5, 9), 2, True),
}


class SmallTiles(RowTransform):
    """With a fixed number of rows per tile and of query depths."""

    def __init__(self, problem):
        super().__init__(problem)
        tile, depths = self.sizes
        self.rows = self.rows._replace(tile=min(tile, self.rows.grid[0]), depths=depths)


@pytest.mark.parametrize(
    ("case", "sizes", "longest"),
    all_pairs([*CASES], [(1, 100), (2, 3), (3, 1), (100, 100)], [0, 128]),  # 0: all rows by torch.fft
)
def test_tiles_and_transforms_equal_query_order(monkeypatch, case, sizes, longest):
    grid, sides, u, causal = CASES[case]
    monkeypatch.setattr(row_transform, "_MAX_MATRIX_SIDE", longest)
    row_transform._fit_memory.cache_clear()
    monkeypatch.setattr(SmallTiles, "sizes", sizes, raising=False)
    monkeypatch.setitem(ALGORITHMS, "row_transform", SmallTiles)
    inputs = make_inputs(grid, sides, u)
    expected = run(inputs, grid, causal=causal, algorithm="query_order")
    assert_all_close(run(inputs, grid, causal=causal, algorithm="row_transform"), expected)
    row_transform._fit_memory.cache_clear()


@pytest.mark.parametrize("side", [1, 2, 7, 8, 31, 129, 1031])
@pytest.mark.parametrize("scope", [1, 3, 9, 61, 4001])
def test_transform_is_long_enough_to_avoid_wrap_around(side, scope):
    reach = min(scope // 2, side - 1)
    for before, after in ((reach, 0), (0, reach), (reach, reach)):
        for for_graph in (False, True):
            rows = choose_rows((2, side), (0, before), (0, after), for_graph)
            assert side + reach <= rows.length < 1.25 * (side + reach) + 2
