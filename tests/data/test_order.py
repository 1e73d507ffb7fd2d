import numpy as np
import pytest

from lambdanets.data.labeled_images import ImageArray
from lambdanets.data.order import WINDOW, BatchSlice, Order, windowed_permutation


class Grouped(ImageArray):
    """Images in shards of 5, 7 and so on."""

    groups = (5, 7, 3, 9, 4, 6, 8, 2, 5, 11, 1, 4)


def images(kind: type[ImageArray]) -> ImageArray:
    count = sum(Grouped.groups)
    return kind(np.zeros((count, 1, 1), np.uint8), [0] * count, "images")


def shard_of(number: int) -> int:
    return int(np.searchsorted(np.cumsum(Grouped.groups), number, side="right"))


@pytest.mark.parametrize("kind", [ImageArray, Grouped])
@pytest.mark.parametrize("processes", [1, 2, 3, 7])
def test_the_processes_take_every_image_once_an_epoch(kind, processes):
    everything = images(kind)
    orders = [Order(everything, 0, BatchSlice(rank, processes)) for rank in range(processes)]
    taken = [
        n for order in orders for first in range(0, 65, 6) for n in order.epoch_indices(3, first, min(6, 65 - first))
    ]
    assert sorted(taken) == list(range(65))


@pytest.mark.parametrize("kind", [ImageArray, Grouped])
def test_a_process_takes_as_many_images_of_a_step_as_another(kind):
    orders = [Order(images(kind), 0, BatchSlice(rank, 3)) for rank in range(3)]
    for first in range(0, 60, 12):
        assert [len(order.epoch_indices(0, first, 12)) for order in orders] == [4, 4, 4]


def test_processes_read_shards_of_their_own_but_for_those_at_the_ends():
    for epoch in range(5):
        shards = [
            {shard_of(number) for number in Order(images(Grouped), 0, BatchSlice(rank, 3)).epoch_indices(epoch, 0, 65)}
            for rank in range(3)
        ]
        assert len(shards[0] & shards[1]) <= 1
        assert len(shards[1] & shards[2]) <= 1
        assert not shards[0] & shards[2]


@pytest.mark.parametrize("kind", [ImageArray, Grouped])
def test_a_step_has_the_same_images_for_one_process_and_for_two_where_they_are_in_files(kind):
    alone = Order(images(kind), 0, BatchSlice()).epoch_indices(1, 12, 12)
    two = np.concatenate([Order(images(kind), 0, BatchSlice(rank, 2)).epoch_indices(1, 12, 12) for rank in range(2)])
    assert (sorted(alone) == sorted(two)) == (kind is ImageArray)


@pytest.mark.parametrize("kind", [ImageArray, Grouped])
@pytest.mark.parametrize("processes", [1, 2, 5])
def test_epochs_that_follow_each_other_have_every_image_once_each(kind, processes):
    taken = [
        number
        for rank in range(processes)
        for first in range(0, 130, 10)
        for number in Order(images(kind), 0, BatchSlice(rank, processes)).consecutive_indices(first, 10)
    ]
    numbers = sorted(number for _, number in taken)
    if processes in (1, 5):  # 65 images divide evenly, so that the processes' epochs end together
        assert numbers == sorted([*range(65), *range(65)])
    assert max(np.bincount(numbers)) <= 3
    assert len(taken) == 130


def test_a_stretch_of_the_shards_stays_within_a_few_at_a_time():
    groups = [10] * 40
    order = windowed_permutation(groups, 0, 0, range(105, 355))
    assert len(set(order.tolist())) == 250
    for first in range(0, 240, 80):
        assert len({number // 10 for number in order[first : first + 75].tolist()}) <= WINDOW
