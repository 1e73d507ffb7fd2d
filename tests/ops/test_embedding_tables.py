import math

import pytest
import torch

from lambdanets.ops import definition, resize_table
from lambdanets.ops.tables import pairwise_embeddings


def random(*shape, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype)


# query grid, context grid, sides of the table
PAIRS = {
    "1d, larger context": ((4,), (7,), (5,)),
    "1d, one query": ((1,), (6,), (5,)),
    "1d, one context position": ((5,), (1,), (3,)),
    "2d, larger and smaller": ((3, 5), (6, 2), (5, 3)),
    "2d, table larger than both": ((2, 3), (3, 1), (11, 9)),
    "2d, same grid": ((3, 4), (3, 4), (3, 5)),
    "3d, larger and smaller": ((2, 3, 2), (3, 1, 4), (3, 5, 3)),
}


@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize(("grid", "context_grid", "sides"), PAIRS.values(), ids=PAIRS.keys())
def test_pairwise_embeddings_and_gradients_equal_the_definition(grid, context_grid, sides, dilation):
    table = random(*sides, 2, 3).requires_grad_()
    expected = definition.relative_embeddings(table, grid, dilation=dilation, context_grid=context_grid)
    pairs = expected.movedim(1, 3).unflatten(0, grid).unflatten(-1, context_grid)
    results = [pairwise_embeddings(table, grid, dilation, context_grid), pairs]
    assert torch.equal(*results)
    weights = random(*results[0].shape)
    torch.testing.assert_close(*(torch.autograd.grad(result, table, weights)[0] for result in results))


# old sides, new sides
RESIZES = {
    "1d up": ((5,), (9,)),
    "1d down": ((9,), (5,)),
    "2d up": ((3, 5), (7, 7)),
    "2d up and down": ((7, 5), (5, 9)),
    "2d, one axis only": ((7, 5), (7, 9)),
    "3d up and down": ((3, 5, 7), (5, 3, 9)),
}


@pytest.mark.parametrize(("old", "new"), RESIZES.values(), ids=RESIZES.keys())
def test_resizing_preserves_linear_tables(old, new):  # so the center and the corners, in each channel
    def plane(sides):
        axes = [torch.linspace(-1, 1, side, dtype=torch.float64) for side in sides]
        values = sum((i + 1) * axis for i, axis in enumerate(torch.meshgrid(*axes, indexing="ij")))
        return values[..., None, None] * torch.tensor([[1.0, -2, 3], [4, 0, 6]], dtype=torch.float64)  # k = 2, u = 3

    torch.testing.assert_close(resize_table(plane(old), new, keep_sum=False), plane(new))


def test_keep_sum_scales_by_the_density_of_offsets():
    table = random(5, 9, 2).requires_grad_()
    factor = math.prod([4 / 8, 8 / 2])
    torch.testing.assert_close(resize_table(table, (9, 3)), factor * resize_table(table, (9, 3), keep_sum=False))
    assert resize_table(table, (9, 3)).requires_grad


@pytest.mark.parametrize("keep_sum", [True, False])
def test_resizing_from_or_to_one_entry_keeps_the_center(keep_sum):
    table = random(5, 1, 3)
    shrunk = resize_table(table, (1, 1), keep_sum=keep_sum)
    assert torch.equal(shrunk, table[2:3])
    grown = resize_table(table, (5, 5), keep_sum=keep_sum)
    assert torch.equal(grown[:, 2:3], table)
    assert not grown[:, [0, 1, 3, 4]].any()
    both = resize_table(table, (1, 3), keep_sum=keep_sum)
    assert torch.equal(both[:, 1:2], table[2:3])
    assert not both[:, [0, 2]].any()


def test_resizing_to_the_same_sides_returns_a_copy():
    table = random(5, 7, 3).half()
    resized = resize_table(table, [5, 7])
    assert torch.equal(resized, table)
    assert resized.data_ptr() != table.data_ptr()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_computed_in_float32_and_keeps_its_dtype(dtype):
    table = random(5, 7, 3).to(dtype)
    resized = resize_table(table, (9, 5))
    assert resized.dtype == dtype
    assert torch.equal(resized, resize_table(table.float(), (9, 5)).to(dtype))


@pytest.mark.parametrize(
    ("shape", "sides", "message"),
    [
        ((5, 7, 4), (5, 6), r"sides must be 1, 2 or 3 integers, odd and positive, got \(5, 6\)"),
        ((5, 7, 4), 5, "sides must be 1, 2 or 3 integers.*got 5"),
        ((5, 7, 4), (3, 3, 3), r"table must be \(r_1, r_2, r_3, k\) or \(r_1, r_2, r_3, k, u\), got shape \(5, 7, 4\)"),
        ((5, 7, 4, 2), (3,), r"table must be \(r_1, k\) or"),
        ((5, 8, 4), (3, 3), r"table must have odd sides.*got \(5, 8, 4\)"),
    ],
)
def test_resize_table_rejects_invalid_arguments(shape, sides, message):
    with pytest.raises(ValueError, match=message):
        resize_table(torch.zeros(shape), sides)
