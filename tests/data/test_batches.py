"""Batches: their order and augmentation depend only on the seed, and they resume within an epoch."""

import random
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from lambdanets.data.batches import Batch, Batches
from lambdanets.data.images import UnreadableImage
from lambdanets.data.labeled_images import DatasetItem, ImageFiles, image_batches
from lambdanets.data.order import WINDOW, BatchSlice, Order, windowed_permutation
from lambdanets.errors import InputError


class PartlyUnreadable(ImageFiles):
    """Images; the first 4 of them are unreadable."""

    def load(self, index: int) -> tuple[Image.Image, int]:
        if index < 4:
            raise UnreadableImage(self.name(index), "it is damaged")
        return super().load(index)


class ShardedNumbers(ImageFiles):
    """65 images in shards of different sizes."""

    shard_sizes = (5, 7, 3, 9, 4, 6, 8, 2, 5, 11, 1, 4)


def images(count: int = 10, image_type: type[ImageFiles] = ImageFiles) -> ImageFiles:
    items = [(Image.new("L", (2, 2), index), index % 3) for index in range(count)]
    files = [DatasetItem(items, index, "numbers") for index in range(count)]
    return image_type(files, [label for _, label in items])


def to_tensor(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).float()[None]


def add_noise(image: Image.Image) -> Tensor:
    """Add random numbers of every generator that a transform may use."""
    return to_tensor(image) + random.random() + np.random.random() + torch.rand(())


def loader(
    source: ImageFiles | None = None, transform: Callable[[Image.Image], Tensor] = add_noise, **options: Any
) -> Batches:
    defaults = {"batch_size": 3, "seed": 0, "training": True, "workers": 0}
    return image_batches(images() if source is None else source, transform, **{**defaults, **options})


def assert_same(actual: list[Batch], expected: list[Batch]) -> None:
    """Assert that two lists of batches are bit-identical in all fields."""
    assert len(actual) == len(expected) > 0
    for batch, other in zip(actual, expected, strict=True):
        assert batch.unreadable == other.unreadable
        torch.testing.assert_close(batch._replace(unreadable=[]), other._replace(unreadable=[]), rtol=0, atol=0)


def indices(batches: Iterable[Batch]) -> list[int]:
    return [index for batch in batches for index in batch.indices.tolist()]


def test_a_batch_has_images_labels_and_indices() -> None:
    batch = next(iter(loader(transform=to_tensor)))
    assert batch.images.shape == (3, 1, 2, 2)
    assert batch.images[:, 0, 0, 0].tolist() == batch.indices.tolist()
    assert batch.targets.tolist() == [index % 3 for index in batch.indices.tolist()]
    assert batch.targets.dtype == batch.indices.dtype == torch.int64


def test_order_and_augmentation_depend_on_the_seed_but_not_on_workers() -> None:
    first, second = list(loader(images(11), seed=1)), list(loader(images(11), seed=2))
    assert sorted(indices(first)) == list(range(11))
    assert indices(first) != indices(second)
    assert not torch.equal(first[0].images - first[0].images.floor(), second[0].images - second[0].images.floor())
    assert_same(list(loader(workers=0)), list(loader(workers=2)))


def test_validation_is_not_shuffled_and_starts_at_the_first_image() -> None:
    batches = loader(training=False)
    next(iter(batches))
    assert batches.state_dict()["steps"] == 0
    assert_same(list(batches), list(batches))
    assert indices(batches) == list(range(10))


@pytest.mark.parametrize(
    ("num_done", "workers", "image_type"),
    [(2, 2, ImageFiles), (4, 0, ImageFiles), (7, 0, ImageFiles), (7, 1, ShardedNumbers)],
)
def test_resumed_loader_yields_the_batches_of_an_uninterrupted_one(num_done, workers, image_type):
    uninterrupted = loader(images(65, image_type), batch_size=20)
    expected = [*uninterrupted, *uninterrupted, *uninterrupted]
    resumed = loader(images(65, image_type), batch_size=20, workers=workers)
    resumed.load_state_dict({"steps": num_done, "steps_per_epoch": len(resumed)})
    actual = [*resumed, *resumed]
    assert_same(actual, expected[num_done : num_done + len(actual)])


def test_a_last_step_that_two_ranks_dropped_stays_dropped_on_one() -> None:
    slices = (BatchSlice(0, ranks, min_micro_batch=2) for ranks in (1, 2))
    one, two = (loader(images(10), batch_size=4, batch_slice=each) for each in slices)
    with pytest.raises(InputError, match=r"must be 3, as before, got 2 with 2 ranks and 1 acc.* step; use"):
        two.load_state_dict(one.state_dict())
    one.load_state_dict(two.state_dict())
    assert len(list(one)) == len(one) == one.steps_per_epoch == 2


def test_the_next_iteration_finishes_an_incomplete_epoch() -> None:
    expected = list(loader(images(11)))
    batches = loader(images(11))
    first = list(islice(batches, 2))
    assert batches.state_dict()["steps"] == 2
    assert_same(first + list(batches), expected)
    assert batches.state_dict()["steps"] == 4


def test_augmentation_of_an_image_does_not_depend_on_its_batch() -> None:
    both = [list(loader(batch_size=size)) for size in (2, 5)]
    small, large = (torch.cat([batch.images for batch in each])[np.argsort(indices(each))] for each in both)
    assert len(small) == 10
    assert torch.equal(small, large)


def test_loading_does_not_change_the_global_generators() -> None:
    def states() -> str:
        return str((random.getstate(), np.random.get_state(), torch.get_rng_state().tolist()))

    before = states()
    list(loader())
    assert states() == before


@pytest.mark.parametrize(
    ("count", "training", "sizes"),
    [(10, True, [3, 3, 3]), (10, False, [3, 3, 3, 1]), (5, True, [3, 2]), (1, False, [1])],
)
def test_only_a_last_training_batch_of_one_image_is_dropped(count: int, training: bool, sizes: list[int]) -> None:
    batches = loader(images(count), training=training, batch_slice=BatchSlice(min_micro_batch=2))
    assert [len(batch.images) for batch in batches] == sizes
    assert len(batches) == len(sizes)
    if training:
        with pytest.raises(InputError, match="number of training images must be at least 2, got 1"):
            loader(images(1), batch_slice=BatchSlice(min_micro_batch=2))


@pytest.mark.parametrize("workers", [0, 2])
def test_unreadable_images_are_skipped_and_listed(workers: int) -> None:
    first, second, *_ = loader(images(image_type=PartlyUnreadable), training=False, workers=workers)
    assert second.unreadable == ["numbers/3: it is damaged"]
    assert second.indices.tolist() == [4, 5]
    assert len(second.images) == len(second.targets) == 2
    assert (first.images.shape, first.targets.shape, first.indices.shape) == ((0,), (0,), (0,))
    assert len(first.unreadable) == 3


def step(image_type: type[ImageFiles], rank: int, world_size: int, epoch: int, number: int, size: int) -> list[int]:
    keys, _ = Order(images(65, image_type), size, 0, BatchSlice(rank, world_size)).step(epoch, number)
    assert {key[0] for key in keys} <= {epoch}
    return [index for _, index in keys]


@pytest.mark.parametrize("image_type", [ImageFiles, ShardedNumbers])
@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_each_image_is_on_one_rank_once_per_epoch(image_type, world_size):
    steps = [(rank, number) for rank in range(world_size) for number in range(11)]
    loaded = [index for rank, number in steps for index in step(image_type, rank, world_size, 3, number, 6)]
    assert sorted(loaded) == list(range(65))


@pytest.mark.parametrize("image_type", [ImageFiles, ShardedNumbers])
def test_ranks_have_equal_numbers_of_images_per_step(image_type):
    for number in range(5):
        assert [len(step(image_type, rank, 3, 0, number, 12)) for rank in range(3)] == [4, 4, 4]


def test_ranks_read_the_same_shard_only_at_their_boundary():
    shard_of = np.repeat(np.arange(12), ShardedNumbers.shard_sizes)
    for epoch in range(5):
        shards = [{shard_of[index] for index in step(ShardedNumbers, rank, 3, epoch, 0, 65)} for rank in range(3)]
        assert len(shards[0] & shards[1]) <= 1
        assert len(shards[1] & shards[2]) <= 1
        assert not shards[0] & shards[2]


@pytest.mark.parametrize("image_type", [ImageFiles, ShardedNumbers])
def test_images_of_a_step_do_not_depend_on_world_size_unless_sharded(image_type):
    one_rank = step(image_type, 0, 1, 1, 1, 12)
    two_ranks = step(image_type, 0, 2, 1, 1, 12) + step(image_type, 1, 2, 1, 1, 12)
    assert (sorted(one_rank) == sorted(two_ranks)) == (image_type is ImageFiles)


def test_windowed_permutation_reads_one_window_of_shards_at_a_time():
    shard_sizes = [10] * 40
    order = windowed_permutation(shard_sizes, 0, 0, range(105, 355))
    assert len(set(order.tolist())) == 250
    for first in range(0, 240, 80):
        assert len({number // 10 for number in order[first : first + 75].tolist()}) <= WINDOW
