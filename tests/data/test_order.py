import numpy as np
import pytest

from lambdanets.data.batches import WINDOW, BatchSlice, Order, windowed_permutation
from lambdanets.data.labeled_images import ImageArray


class ShardedArray(ImageArray):
    """Images in shards of different sizes."""

    shard_sizes = (5, 7, 3, 9, 4, 6, 8, 2, 5, 11, 1, 4)


def images(image_type: type[ImageArray]) -> ImageArray:
    count = sum(ShardedArray.shard_sizes)
    return image_type(np.zeros((count, 1, 1), np.uint8), [0] * count, "images")


def find_shard(index: int) -> int:
    return int(np.searchsorted(np.cumsum(ShardedArray.shard_sizes), index, side="right"))


def step(image_type: type[ImageArray], rank: int, world_size: int, epoch: int, number: int, size: int) -> list[int]:
    keys, _ = Order(images(image_type), size, 0, BatchSlice(rank, world_size)).step(epoch, number)
    assert {key[0] for key in keys} <= {epoch}
    return [index for _, index in keys]


@pytest.mark.parametrize("image_type", [ImageArray, ShardedArray])
@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_each_image_is_on_one_rank_once_per_epoch(image_type, world_size):
    steps = [(rank, number) for rank in range(world_size) for number in range(11)]
    loaded = [index for rank, number in steps for index in step(image_type, rank, world_size, 3, number, 6)]
    assert sorted(loaded) == list(range(65))


@pytest.mark.parametrize("image_type", [ImageArray, ShardedArray])
def test_ranks_have_equal_numbers_of_images_per_step(image_type):
    for number in range(5):
        assert [len(step(image_type, rank, 3, 0, number, 12)) for rank in range(3)] == [4, 4, 4]


def test_ranks_read_the_same_shard_only_at_their_boundary():
    for epoch in range(5):
        shards = [{find_shard(index) for index in step(ShardedArray, rank, 3, epoch, 0, 65)} for rank in range(3)]
        assert len(shards[0] & shards[1]) <= 1
        assert len(shards[1] & shards[2]) <= 1
        assert not shards[0] & shards[2]


@pytest.mark.parametrize("image_type", [ImageArray, ShardedArray])
def test_images_of_a_step_do_not_depend_on_world_size_unless_sharded(image_type):
    one_rank = step(image_type, 0, 1, 1, 1, 12)
    two_ranks = step(image_type, 0, 2, 1, 1, 12) + step(image_type, 1, 2, 1, 1, 12)
    assert (sorted(one_rank) == sorted(two_ranks)) == (image_type is ImageArray)


def test_windowed_permutation_reads_one_window_of_shards_at_a_time():
    shard_sizes = [10] * 40
    order = windowed_permutation(shard_sizes, 0, 0, range(105, 355))
    assert len(set(order.tolist())) == 250
    for first in range(0, 240, 80):
        assert len({number // 10 for number in order[first : first + 75].tolist()}) <= WINDOW
