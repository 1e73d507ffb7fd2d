import random
from collections.abc import Callable, Iterator
from itertools import islice

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from data.same_batches import assert_same
from lambdanets.data.images import UnreadableImage
from lambdanets.data.labeled_images import ImageArray
from lambdanets.data.loader import Batch, ImageBatches
from lambdanets.errors import InputError


class SomeUnreadable(ImageArray):
    """Images whose numbers below 4 cannot be read."""

    def load(self, index: int) -> tuple[Image.Image, int]:
        if index < 4:
            raise UnreadableImage(self.name(index), "it is damaged")
        return super().load(index)


def images(count: int = 10, kind: type[ImageArray] = ImageArray) -> ImageArray:
    pixels = np.repeat(np.arange(count, dtype=np.uint8), 4).reshape(count, 2, 2)
    return kind(pixels, [index % 3 for index in range(count)], "numbers")


def exact(image: Image.Image) -> Tensor:
    values = torch.from_numpy(np.array(image)).float()
    return values[None] if image.mode == "L" else values.permute(2, 0, 1)


def noisy(image: Image.Image) -> Tensor:
    """Draws from every generator that a transform may use."""
    return exact(image) + random.random() + np.random.random() + torch.rand(())


def loader(
    source: ImageArray | None = None,
    transform: Callable[[Image.Image], Tensor] = noisy,
    *,
    channels: int = 1,
    batch_size: int = 3,
    seed: int = 0,
    training: bool = True,
    workers: int = 0,
) -> ImageBatches:
    return ImageBatches(
        images() if source is None else source,
        transform,
        channels=channels,
        batch_size=batch_size,
        seed=seed,
        training=training,
        workers=workers,
    )


def indices(batches: Iterator[Batch]) -> list[int]:
    return [index for batch in batches for index in batch.indices.tolist()]


def test_a_batch_holds_images_labels_and_their_numbers() -> None:
    batch = next(iter(loader(transform=exact)))
    assert batch.images.shape == (3, 1, 2, 2)
    assert batch.images[:, 0, 0, 0].tolist() == batch.indices.tolist()
    assert batch.labels.tolist() == [index % 3 for index in batch.indices.tolist()]
    assert batch.labels.dtype == batch.indices.dtype == torch.int64


def test_three_channels_are_made_of_a_grey_image() -> None:
    assert next(iter(loader(channels=3))).images.shape == (3, 3, 2, 2)


@pytest.mark.parametrize("workers", [0, 2])
def test_every_image_comes_once_an_epoch_in_another_order(workers: int) -> None:
    batches = loader(images(11), workers=workers)
    first, second = indices(iter(batches)), indices(iter(batches))
    assert sorted(first) == sorted(second) == list(range(11))
    assert first != second
    assert first != sorted(first)


def test_another_seed_gives_another_order_and_other_pixels() -> None:
    one, other = list(loader(seed=1)), list(loader(seed=2))
    assert indices(iter(one)) != indices(iter(other))
    assert not torch.equal(one[0].images - one[0].images.floor(), other[0].images - other[0].images.floor())


def test_validation_runs_in_plain_order_from_the_start_each_time() -> None:
    batches = loader(training=False)
    next(iter(batches))
    assert batches.state_dict()["steps"] == 0
    assert_same(list(batches), list(batches))
    assert indices(iter(batches)) == list(range(10))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("served", [2, 4, 7])
def test_resuming_gives_the_batches_of_an_unbroken_run(served: int, workers: int) -> None:
    unbroken = loader(images(11), workers=0)
    expected = [*unbroken, *unbroken, *unbroken]
    resumed = loader(images(11), workers=workers)
    resumed.load_state_dict({"steps": served, "steps_per_epoch": len(resumed)})
    rest = [*resumed, *resumed]
    assert_same(rest, expected[served : served + len(rest)])


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_left_early_is_finished_by_the_next_pass(workers: int) -> None:
    expected = list(loader(images(11)))
    batches = loader(images(11), workers=workers)
    begun = list(islice(batches, 2))
    assert batches.state_dict()["steps"] == 2
    assert_same(begun + list(batches), expected)
    assert batches.state_dict()["steps"] == 4


def test_resuming_decodes_nothing_that_was_served() -> None:
    loaded = []

    class Counted(ImageArray):
        def load(self, index: int) -> tuple[Image.Image, int]:
            loaded.append(index)
            return super().load(index)

    batches = loader(images(11, Counted))
    batches.load_state_dict({"steps": 3, "steps_per_epoch": len(batches)})
    assert loaded == []
    assert indices(iter(batches)) == loaded
    assert len(loaded) == 2


def test_the_number_of_workers_does_not_change_the_pixels() -> None:
    assert_same(list(loader(workers=0)), list(loader(workers=2)))


def test_an_images_random_numbers_do_not_depend_on_its_batch() -> None:
    def pixels(batch_size: int) -> dict[int, Tensor]:
        return {
            index: image
            for batch in loader(batch_size=batch_size)
            for index, image in zip(batch.indices.tolist(), batch.images, strict=True)
        }

    one, other = pixels(2), pixels(5)
    assert len(one) == len(other) == 10
    assert all(torch.equal(one[index], other[index]) for index in one)


def test_the_callers_random_numbers_are_left_alone() -> None:
    def draw() -> tuple[float, float, float]:
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        return random.random(), np.random.random(), torch.rand(()).item()

    expected = draw()
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    list(loader())
    assert (random.random(), np.random.random(), torch.rand(()).item()) == expected


def test_a_last_training_batch_of_one_image_is_dropped() -> None:
    batches = loader(images(10))
    assert [len(batch.images) for batch in batches] == [3, 3, 3]
    assert len(batches) == 3


def test_a_last_validation_batch_of_one_image_is_kept() -> None:
    batches = loader(images(10), training=False)
    assert [len(batch.images) for batch in batches] == [3, 3, 3, 1]
    assert len(batches) == 4


def test_a_last_batch_of_two_images_is_kept() -> None:
    assert [len(batch.images) for batch in loader(images(5))] == [3, 2]


def test_a_set_of_one_image_cannot_be_trained_on_but_validated() -> None:
    with pytest.raises(InputError, match="training images must be at least 2, got 1"):
        loader(images(1))
    assert len(list(loader(images(1), training=False))) == 1


@pytest.mark.parametrize("wrong", [{"channels": 2}, {"batch_size": 0}, {"seed": -1}, {"workers": -1}])
def test_an_argument_out_of_range_is_named(wrong: dict[str, int]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        loader(**wrong)


@pytest.mark.parametrize("workers", [0, 2])
def test_unreadable_images_are_left_out_and_named(workers: int) -> None:
    batches = list(loader(images(kind=SomeUnreadable), training=False, workers=workers))
    assert batches[1].unreadable == ["numbers/3: it is damaged"]
    assert batches[1].indices.tolist() == [4, 5]
    assert len(batches[1].images) == len(batches[1].labels) == 2


def test_a_batch_of_unreadable_images_is_empty() -> None:
    batch = next(iter(loader(images(kind=SomeUnreadable), training=False)))
    assert (batch.images.shape, batch.labels.shape, batch.indices.shape) == ((0,), (0,), (0,))
    assert len(batch.unreadable) == 3


def test_a_batch_keeps_its_kind_when_lightning_moves_it() -> None:
    from lightning.pytorch.utilities import move_data_to_device

    batch = move_data_to_device(next(iter(loader(images(kind=SomeUnreadable), training=False))), torch.device("meta"))
    assert isinstance(batch, Batch)
    assert batch.images.device.type == "meta"
    assert batch.unreadable[0] == "numbers/0: it is damaged"
