import numpy as np
import pytest

from lambdanets.data.labeled_images import ImageArray
from lambdanets.data.order import WINDOW, BatchSlice, Order, windowed_permutation


class Sharded(ImageArray):
    """Images in shards of 5, 7 and more images."""

    groups = (5, 7, 3, 9, 4, 6, 8, 2, 5, 11, 1, 4)


def images(kind: type[ImageArray]) -> ImageArray:
    count = sum(Sharded.groups)
    return kind(np.zeros((count, 1, 1), np.uint8), [0] * count, "images")


def shard_of(index: int) -> int:
    return int(np.searchsorted(np.cumsum(Sharded.groups), index, side="right"))


@pytest.mark.parametrize("kind", [ImageArray, Sharded])
@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_ranks_together_have_every_image_once_per_epoch(kind, world_size):
    dataset = images(kind)
    orders = [Order(dataset, 0, BatchSlice(rank, world_size)) for rank in range(world_size)]
    steps = [order.epoch_indices(3, first, min(6, 65 - first)) for order in orders for first in range(0, 65, 6)]
    assert sorted(np.concatenate(steps)) == list(range(65))


@pytest.mark.parametrize("kind", [ImageArray, Sharded])
def test_ranks_have_equally_many_images_of_a_step(kind):
    orders = [Order(images(kind), 0, BatchSlice(rank, 3)) for rank in range(3)]
    for first in range(0, 60, 12):
        assert [len(order.epoch_indices(0, first, 12)) for order in orders] == [4, 4, 4]


def test_ranks_share_at_most_the_shard_at_their_boundary():
    for epoch in range(5):
        shards = [
            {shard_of(index) for index in Order(images(Sharded), 0, BatchSlice(rank, 3)).epoch_indices(epoch, 0, 65)}
            for rank in range(3)
        ]
        assert len(shards[0] & shards[1]) <= 1
        assert len(shards[1] & shards[2]) <= 1
        assert not shards[0] & shards[2]


@pytest.mark.parametrize("kind", [ImageArray, Sharded])
def test_images_of_a_step_do_not_depend_on_world_size_unless_sharded(kind):
    alone = Order(images(kind), 0, BatchSlice()).epoch_indices(1, 12, 12)
    two = np.concatenate([Order(images(kind), 0, BatchSlice(rank, 2)).epoch_indices(1, 12, 12) for rank in range(2)])
    assert (sorted(alone) == sorted(two)) == (kind is ImageArray)


@pytest.mark.parametrize("kind", [ImageArray, Sharded])
@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_consecutive_epochs_have_every_image_once_each(kind, world_size):
    taken = [
        number
        for rank in range(world_size)
        for first in range(0, 130, 10)
        for number in Order(images(kind), 0, BatchSlice(rank, world_size)).consecutive_indices(first, 10)
    ]
    numbers = sorted(number for _, number in taken)
    if world_size in (1, 5):  # 65 images divide evenly, so the epochs of the ranks end together
        assert numbers == sorted([*range(65), *range(65)])
    assert max(np.bincount(numbers)) <= 3
    assert len(taken) == 130


def test_windowed_permutation_visits_a_window_of_shards_at_a_time():
    groups = [10] * 40
    order = windowed_permutation(groups, 0, 0, range(105, 355))
    assert len(set(order.tolist())) == 250
    for first in range(0, 240, 80):
        assert len({number // 10 for number in order[first : first + 75].tolist()}) <= WINDOW
