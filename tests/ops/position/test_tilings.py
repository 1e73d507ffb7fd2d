"""Query order and row transform with tiles of any size, each compared with the other."""

import pytest
from interactions import assert_all_close, make_inputs, run

from all_pairs import all_pairs
from lambdanets.ops.position.choose import ALGORITHMS
from lambdanets.ops.position.query_order import QueryOrder
from lambdanets.ops.position.row_transform import RowTransform

# grid, sides of the table, u, causal, tiles of query order
CASES = {
    "even last axis": ((7, 8), (5, 3), 0, False, [(7, 8), (1, 8), (2, 4), (3, 2), (7, 2)]),
    "odd, causal, intra-depth": ((7, 9), (5, 5), 2, True, [(7, 9), (2, 9), (4, 4)]),
    "one column": ((6, 1), (5, 1), 0, False, [(2, 1)]),
    "two columns, larger table": ((4, 2), (7, 3), 0, False, [(3, 2)]),
    "sequence": ((13,), (5,), 0, False, [(1, 13), (1, 4), (1, 1)]),
    "causal sequence": ((13,), (25,), 0, True, [(1, 13)]),
    "rows of a long sequence": ((1100,), (301,), 2, False, [(7, 16)]),
    "causal rows of a long sequence": ((1100,), (1501,), 0, True, [(34, 4)]),
    "volume": ((3, 5, 4), (3, 3, 3), 0, False, [(5, 4), (2, 4), (2, 2)]),
    "causal volume, intra-depth": ((4, 3, 5), (7, 5, 9), 2, True, [(2, 5), (3, 2)]),
}


class TiledQueryOrder(QueryOrder):
    """Query order with a fixed tile."""

    def __init__(self, problem):
        super().__init__(problem)
        rows, columns = self.tile
        self.rows, self.columns = self.rows._replace(tile=rows), self.columns._replace(tile=columns)


class TiledRowTransform(RowTransform):
    """With a fixed number of rows per tile."""

    def __init__(self, problem):
        super().__init__(problem)
        rows = self.maps.rows
        self.maps = self.maps._replace(rows=rows._replace(tile=min(self.tile, rows.side)))


TILED = {"query_order": TiledQueryOrder, "row_transform": TiledRowTransform}
ROWS = [("query_order", name, tile) for name, case in CASES.items() for tile in case[4]]
ROWS += [("row_transform", name, tile) for name, tile in all_pairs([*CASES], [1, 2, 3, 100])]


@pytest.mark.parametrize(("algorithm", "case", "tile"), ROWS)
def test_tiles_of_one_algorithm_equal_the_other(monkeypatch, algorithm, case, tile):
    grid, sides, u, causal, _ = CASES[case]
    inputs, (other,) = make_inputs(grid, sides, u), TILED.keys() - {algorithm}
    expected = run(inputs, grid, causal=causal, algorithm=other)
    monkeypatch.setattr(TILED[algorithm], "tile", tile, raising=False)
    monkeypatch.setitem(ALGORITHMS, algorithm, TILED[algorithm])
    assert_all_close(run(inputs, grid, causal=causal, algorithm=algorithm), expected)
