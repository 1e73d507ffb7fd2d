import itertools
import math

import pytest
import torch

from lambdanets.ops.position.algorithm import Problem
from lambdanets.ops.position.windows import (
    Tiling,
    make_block,
    make_block_backward,
    pack_outputs,
    pack_queries,
    pack_values,
    unpack_outputs,
    unpack_queries,
    unpack_values,
)

# grid, offsets before and after 0, tile
TILINGS = {
    "one position": ((1, 1), (0, 0), (0, 0), (1, 1)),
    "whole grid": ((4, 5), (2, 1), (2, 1), (4, 5)),
    "rows": ((6, 5), (2, 4), (2, 4), (2, 5)),
    "a smaller last row of tiles": ((7, 5), (2, 1), (2, 1), (3, 5)),
    "columns": ((4, 6), (1, 2), (1, 2), (4, 3)),
    "padded columns": ((4, 7), (1, 2), (1, 2), (4, 3)),
    "rows and padded columns": ((5, 7), (2, 1), (2, 1), (2, 4)),
    "asymmetric offsets, as if causal": ((5, 7), (2, 1), (0, 1), (2, 4)),
    "a sequence as one row": ((1, 11), (0, 2), (0, 2), (1, 4)),
    "3d, full axes": ((3, 4, 2), (1, 1, 1), (1, 1, 1), (2, 4, 2)),
    "3d, tiled in both other axes": ((3, 5, 4), (1, 1, 1), (1, 1, 1), (2, 2, 3)),
}
BATCH, HEADS, K, V = 2, 3, 4, 5


def make_tiling(grid, before, after, tile, u=1):
    return Tiling(Problem(BATCH, HEADS, grid, K, V, u, before, after, False, torch.float64, "cpu"), tile)


tilings = pytest.mark.parametrize("case", TILINGS.values(), ids=TILINGS.keys())
depths = pytest.mark.parametrize("u", [1, 2])


def random(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def dot(x, y):
    return (x * y).sum()


@tilings
def test_unpack_queries_inverts_pack_queries(case):
    tiling = make_tiling(*case)
    queries = random(BATCH, HEADS, math.prod(case[0]), K)
    assert torch.equal(unpack_queries(pack_queries(queries, tiling), tiling), queries)


@tilings
def test_unpack_outputs_inverts_pack_outputs(case):
    tiling = make_tiling(*case)
    outputs = random(BATCH, HEADS, math.prod(case[0]), V)
    assert torch.equal(unpack_outputs(pack_outputs(outputs, tiling), tiling), outputs)


@tilings
def test_packing_pads_with_zeros(case):
    tiling = make_tiling(*case)
    positions = math.prod(case[0])
    for packed in (
        pack_queries(torch.ones(BATCH, HEADS, positions, 1), tiling),
        pack_outputs(torch.ones(BATCH, HEADS, positions, V), tiling)[..., :1],
    ):
        assert packed.sum().item() == BATCH * HEADS * positions
        tile_rows = BATCH * HEADS * case[0][0] * math.prod(tiling.num_tiles)
        assert packed.numel() == tile_rows * tiling.positions_per_tile_row


@depths
@tilings
def test_windows_contain_the_values_around_their_tile(case, u):
    tiling = make_tiling(*case, u=u)
    grid = case[0]
    values = random(BATCH, math.prod(grid), V, u)
    packed = pack_values(values, tiling).view(*tiling.num_tiles, BATCH, grid[0], *tiling.window[1:], u, V)
    maps = values.unflatten(1, grid)
    expected = torch.zeros_like(packed)
    for index in torch.cartesian_prod(*(torch.arange(side) for side in expected.shape[:-2])).tolist():
        axes = len(grid) - 1
        tiles, (example, row), window_positions = index[:axes], index[axes : axes + 2], index[axes + 2 :]
        columns = [
            j * axis.tile + w - (0 if axis.is_covered else axis.before)
            for j, w, axis in zip(tiles, window_positions, tiling.axes[1:], strict=True)
        ]
        if all(0 <= column < side for column, side in zip(columns, grid[1:], strict=True)):
            expected[tuple(index)] = maps[(example, row, *columns)].mT
    assert torch.equal(packed, expected)


@depths
@tilings
def test_unpack_values_is_the_adjoint_of_pack_values(case, u):
    tiling = make_tiling(*case, u=u)
    values = random(BATCH, math.prod(case[0]), V, u)
    packed = pack_values(values, tiling)
    grad_packed = random(*packed.shape)
    result = unpack_values(grad_packed, tiling)
    assert result.shape == values.shape
    torch.testing.assert_close(dot(result, values), dot(grad_packed, packed), rtol=1e-12, atol=1e-12)


@tilings
def test_tiles_cover_each_row_once_and_windows_all_its_offsets(case):
    (side, *_), (before, *_), (after, *_), (tile, *_) = case
    covered = []
    for rows, window, block in make_tiling(*case).axes[0].tiles():
        covered += range(rows.start, rows.stop)
        first = rows.start - before if tile < side else 0
        last = min(side, rows.stop + after) if tile < side else side
        assert (window.start, window.stop) == (max(0, first), last)
        assert (block.start, block.stop) == (window.start - first, window.stop - first)
    assert covered == list(range(side))


def make_block_case(case):
    axes = make_tiling(*case).axes
    return axes, random(*(axis.before + 1 + axis.after for axis in axes), 2, 3)


@tilings
def test_make_block_equals_a_loop_over_positions(case):
    axes, table = make_block_case(case)
    tile, window = [axis.tile for axis in axes], [axis.window for axis in axes]
    expected = torch.zeros(*tile, *window, 2, 3, dtype=table.dtype)
    for t in itertools.product(*map(range, tile)):
        for w in itertools.product(*map(range, window)):
            firsts = [axis.before if axis.is_covered else 0 for axis in axes]
            index = tuple(first + j - i for first, i, j in zip(firsts, t, w, strict=True))
            if all(0 <= i < side for i, side in zip(index, table.shape, strict=False)):
                expected[(*t, *w)] = table[index]
    block = make_block(table, axes)
    assert block.is_contiguous()
    assert torch.equal(block, expected.movedim(-2, len(axes)))


@tilings
def test_make_block_backward_is_the_adjoint_of_make_block(case):
    axes, table = make_block_case(case)
    block = make_block(table, axes)
    gradient = random(*block.shape)
    result = make_block_backward(gradient, axes)
    assert result.shape == table.shape
    torch.testing.assert_close(dot(result, table), dot(gradient, block), rtol=1e-12, atol=1e-12)


@tilings
def test_packing_does_not_depend_on_strides(case):
    tiling = make_tiling(*case)
    queries, values = random(BATCH, HEADS, math.prod(case[0]), K), random(BATCH, math.prod(case[0]), V, 1)
    expected = pack_queries(queries, tiling).clone(), pack_values(values, tiling).clone()
    strided = queries.transpose(1, 2).contiguous().transpose(1, 2), values.transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(pack_queries(strided[0], tiling), expected[0])
    assert torch.equal(pack_values(strided[1], tiling), expected[1])
