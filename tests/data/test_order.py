import numpy as np
import pytest

from lambdanets.data.labeled_images import ImageArray
from lambdanets.data.order import WINDOW, BatchSlice, Order, windowed_permutation


class ShardedArray(ImageArray):
    """Images in shards of different sizes."""

    shard_sizes = (5, 7, 3, 9, 4, 6, 8, 2, 5, 11, 1, 4)


def images(image_type: type[ImageArray]) -> ImageArray:
    count = sum(ShardedArray.shard_sizes)
    return image_type(np.zeros((count, 1, 1), np.uint8), [0] * count, "images")


def find_shard(index: int) -> int:
    return int(np.searchsorted(np.cumsum(ShardedArray.shard_sizes), index, side="right"))


@pytest.mark.parametrize("image_type", [ImageArray, ShardedArray])
@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_each_image_is_on_one_rank_once_per_epoch(image_type, world_size):
    dataset = images(image_type)
    orders = [Order(dataset, 0, BatchSlice(rank, world_size)) for rank in range(world_size)]
    steps = [order.epoch_indices(3, first, min(6, 65 - first)) for order in orders for first in range(0, 65, 6)]
    assert sorted(np.concatenate(steps)) == list(range(65))


@pytest.mark.parametrize("image_type", [ImageArray, ShardedArray])
def test_ranks_have_equal_numbers_of_images_per_step(image_type):
    orders = [Order(images(image_type), 0, BatchSlice(rank, 3)) for rank in range(3)]
    for first in range(0, 60, 12):
        assert [len(order.epoch_indices(0, first, 12)) for order in orders] == [4, 4, 4]


def test_ranks_read_the_same_shard_only_at_their_boundary():
    for epoch in range(5):
        shards = [
            {
                find_shard(index)
                for index in Order(images(ShardedArray), 0, BatchSlice(rank, 3)).epoch_indices(epoch, 0, 65)
            }
            for rank in range(3)
        ]
        assert len(shards[0] & shards[1]) <= 1
        assert len(shards[1] & shards[2]) <= 1
        assert not shards[0] & shards[2]


@pytest.mark.parametrize("image_type", [ImageArray, ShardedArray])
def test_images_of_a_step_do_not_depend_on_world_size_unless_sharded(image_type):
    one_rank = Order(images(image_type), 0, BatchSlice()).epoch_indices(1, 12, 12)
    two_ranks = np.concatenate(
        [Order(images(image_type), 0, BatchSlice(rank, 2)).epoch_indices(1, 12, 12) for rank in range(2)]
    )
    assert (sorted(one_rank) == sorted(two_ranks)) == (image_type is ImageArray)


@pytest.mark.parametrize("image_type", [ImageArray, ShardedArray])
@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_consecutive_epochs_have_every_image_once_each(image_type, world_size):
    keys = [
        key
        for rank in range(world_size)
        for first in range(0, 130, 10)
        for key in Order(images(image_type), 0, BatchSlice(rank, world_size)).consecutive_indices(first, 10)
    ]
    indices = sorted(index for _, index in keys)
    if world_size in (1, 5):  # 65 images are divisible by 5, so the epochs of all ranks end at the same step
        assert indices == sorted([*range(65), *range(65)])
    assert max(np.bincount(indices)) <= 3
    assert len(keys) == 130


def test_windowed_permutation_reads_one_window_of_shards_at_a_time():
    shard_sizes = [10] * 40
    order = windowed_permutation(shard_sizes, 0, 0, range(105, 355))
    assert len(set(order.tolist())) == 250
    for first in range(0, 240, 80):
        assert len({number // 10 for number in order[first : first + 75].tolist()}) <= WINDOW
