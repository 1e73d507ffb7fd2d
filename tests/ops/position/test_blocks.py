import itertools
import math

import pytest
import torch

from lambdanets.ops.position.windows import Axis, make_block, make_block_backward

# sides of the table, and (tile, window, first) along each axis
BLOCKS = {
    "1d, global": ((9,), [(5, 5, 4)]),
    "1d, a tile and its window": ((5,), [(3, 7, 0)]),
    "1d, longer than the table in both directions": ((3,), [(4, 9, -2)]),
    "1d, one position": ((7,), [(1, 1, 3)]),
    "2d": ((5, 3), [(2, 6, 0), (4, 4, 1)]),
    "2d, one row": ((1, 7), [(1, 1, 0), (3, 5, 2)]),
    "3d": ((3, 5, 3), [(2, 4, 0), (3, 3, 2), (1, 3, 0)]),
}
blocks = pytest.mark.parametrize(("sides", "axes"), BLOCKS.values(), ids=BLOCKS.keys())


def random(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def reference_block(table, axes):
    """Compute E (T_1..T_D, k, w_1..w_D, u) with E[t, w] = R[first + w - t], zero outside of the table."""
    tile, window = [axis.tile for axis in axes], [axis.window for axis in axes]
    block = torch.zeros(*tile, *window, *table.shape[-2:], dtype=table.dtype)
    for t in itertools.product(*map(range, tile)):
        for w in itertools.product(*map(range, window)):
            index = tuple(axis.first + j - i for axis, i, j in zip(axes, t, w, strict=True))
            if all(0 <= i < side for i, side in zip(index, table.shape, strict=False)):
                block[(*t, *w)] = table[index]
    return block.movedim(-2, len(axes))


@blocks
def test_make_block_equals_a_loop_over_positions(sides, axes):
    axes, table = [Axis(*axis) for axis in axes], random(*sides, 2, 3)
    block = make_block(table, axes)
    assert block.is_contiguous()
    assert torch.equal(block, reference_block(table, axes))


def test_entries_outside_of_the_table_are_zero():
    block = make_block(torch.ones(3, 1, 1), [Axis(tile=2, window=6, first=-1)])
    assert block.flatten(1).tolist() == [[0, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 0]]


@blocks
def test_make_block_backward_is_the_adjoint_of_make_block(sides, axes):
    axes, table = [Axis(*axis) for axis in axes], random(*sides, 2, 3)
    block = make_block(table, axes)
    gradient = random(*block.shape)
    result = make_block_backward(gradient, axes, sides)
    assert result.shape == table.shape
    torch.testing.assert_close((result * table).sum(), (gradient * block).sum(), rtol=1e-12, atol=1e-12)


@blocks
def test_make_block_backward_of_ones_counts_pairs_per_offset(sides, axes):
    axes = [Axis(*axis) for axis in axes]
    result = make_block_backward(torch.ones_like(make_block(random(*sides, 1, 1), axes)), axes, sides)
    for index in itertools.product(*map(range, sides)):
        pairs = [
            sum(0 <= i - axis.first + t < axis.window for t in range(axis.tile))
            for i, axis in zip(index, axes, strict=True)
        ]
        assert result[index].item() == math.prod(pairs)
