"""Batches of labeled and pseudo-labeled images, and their loss."""

import random
from collections import Counter
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from PIL import Image

from data.same_batches import assert_same
from lambdanets.data.images import UnreadableImage
from lambdanets.data.labeled_images import ImageArray
from lambdanets.data.loader import ImageBatches
from lambdanets.data.order import BatchSlice
from lambdanets.data.pseudo_labels.student_images import open_student_images
from lambdanets.data.shards.images import open_shards
from lambdanets.errors import InputError
from lambdanets.recipes.digits import recipe as DIGITS
from lambdanets.training.classification.model import ClassificationProbe
from lambdanets.training.classification.task import cross_entropy
from lambdanets.training.distributed import World
from lambdanets.training.micro_batches import with_micro_batch
from training.teachers import CLASSES, write_selection

SLICES = [BatchSlice(), BatchSlice(accumulation_steps=3), BatchSlice(0, 2), BatchSlice(1, 2, 2)]


class SoftLabeled(ImageArray):
    """Images with soft labels over 3 classes; images in shards also have `shard_sizes`."""

    shard_sizes: list[int] | None

    def load(self, index: int) -> tuple[Image.Image, np.ndarray]:
        image, label = super().load(index)
        distribution = np.full(3, 0.2, np.float32)
        distribution[label] = 0.6
        return image, distribution


class SomeUnreadable(SoftLabeled):
    """Soft-labeled images, of which every second one is unreadable."""

    def load(self, index: int) -> tuple[Image.Image, np.ndarray]:
        if index % 2:
            raise UnreadableImage(self.name(index), "it is damaged")
        return super().load(index)


def make_images(count, image_class=ImageArray, first=0, shard_sizes=None):
    """Make gray images of brightness `first`, `first` + 1, ..., with labels 0, 1, 2, 0, ..."""
    pixels = np.repeat(np.arange(first, first + count, dtype=np.uint8), 4).reshape(count, 2, 2)
    labeled = image_class(pixels, [index % 3 for index in range(count)], "numbers")
    if shard_sizes is not None:
        labeled.shard_sizes = shard_sizes
    return labeled


def to_tensor(image):
    return torch.from_numpy(np.array(image)).float()[None]


def add_noise(image):
    """Add random numbers from all generators that a transform may use."""
    return to_tensor(image) + random.random() / 3 + np.random.random() / 3 + torch.rand(()) / 3


def make_loader(transform=to_tensor, *, count=11, pseudo=None, pseudo_batch_size=6, batch_size=4, **options):
    """Load labeled images of brightness 0 to 10 and pseudo-labeled images of brightness 100 to 106."""
    pseudo = make_images(7, SoftLabeled, 100) if pseudo is None else pseudo
    options = {"channels": 1, "seed": 0, "training": True, "workers": 0} | options
    options |= {"batch_size": batch_size, "pseudo_images": pseudo, "pseudo_batch_size": pseudo_batch_size}
    return ImageBatches(make_images(count), transform, **options)


def brightness(batch):
    return batch.images[:, 0, 0, 0].int().tolist()


def test_each_step_has_labeled_and_pseudo_labeled_images():
    batches = make_loader()
    assert len(batches) == 3
    for _ in range(2):
        sizes = [
            (sum(n < 100 for n in brightness(batch)), sum(n >= 100 for n in brightness(batch))) for batch in batches
        ]
        assert sizes == [(4, 6), (4, 6), (3, 6)]
    assert [batch.step_images for batch in batches] == [10, 10, 9]


@pytest.mark.parametrize(("shard_sizes", "world_size"), [(None, 1), (None, 2), ([2, 0, 1, 4], 1)])
def test_pseudo_labeled_images_have_their_own_epochs(shard_sizes, world_size):
    pseudo = make_images(7, SoftLabeled, 100, shard_sizes)
    loaders = [
        make_loader(count=12, pseudo=pseudo, pseudo_batch_size=4, batch_slice=BatchSlice(rank, world_size))
        for rank in range(world_size)
    ]
    # 14 epochs of 3 steps with 4 pseudo-labeled images are 24 epochs over 7 images
    steps = zip(*(iterate_epochs(loader, 14) for loader in loaders), strict=True)
    loaded = [number for batches in steps for batch in batches for number in brightness(batch) if number >= 100]
    assert Counter(loaded) == dict.fromkeys(range(100, 107), 24)
    if world_size == 1:
        epochs = [loaded[first : first + 7] for first in range(0, len(loaded), 7)]
        assert all(sorted(epoch) == [*range(100, 107)] for epoch in epochs)
        assert len({*map(tuple, epochs)}) > 12


def iterate_epochs(batches, count):
    for _ in range(count):
        yield from batches


def test_pseudo_labeled_images_do_not_change_the_order_of_labeled_ones():
    labeled = ImageBatches(make_images(11), add_noise, channels=1, batch_size=4, seed=0, training=True, workers=0)
    for combined, expected in zip(make_loader(add_noise), labeled, strict=True):
        assert torch.equal(combined.images[: len(expected.images)], expected.images)


def test_repeated_images_are_augmented_differently():
    values = [
        value
        for batch in iterate_epochs(make_loader(add_noise, count=8, pseudo_batch_size=7), 4)
        for value in batch.images[4:, 0, 0, 0].tolist()
    ]
    assert len(values) == len({*values}) == 8 * 7


@pytest.mark.parametrize("batch_slice", SLICES, ids=str)
@pytest.mark.parametrize("shard_sizes", [None, [2, 0, 1, 4]])
@pytest.mark.parametrize("steps_done", [0, 1, 2, 3, 4, 7])
def test_batches_of_both_sets_resume_in_mid_epoch(shard_sizes, steps_done, batch_slice):
    def new_loader():
        return make_loader(
            add_noise,
            pseudo=make_images(7, SoftLabeled, 100, shard_sizes),
            count=24,
            batch_size=12,
            batch_slice=batch_slice,
        )

    expected = [*iterate_epochs(new_loader(), 8)]
    interrupted = new_loader()
    list(islice(iterate_epochs(interrupted, 8), steps_done * batch_slice.accumulation_steps))
    resumed = new_loader()
    resumed.load_state_dict(interrupted.state_dict())
    actual = [*resumed, *resumed]
    assert_same(actual, expected[steps_done * batch_slice.accumulation_steps :][: len(actual)])


def test_batches_of_both_sets_do_not_depend_on_workers(shards, tmp_path):
    labeled = open_shards(str(shards))[0]["train"]
    student = open_student_images(str(shards), write_selection(shards, tmp_path / "s"), CLASSES, soft=True)
    options = {"channels": 1, "batch_size": 4, "seed": 0, "training": True, "pseudo_batch_size": 6}
    assert_same(
        *([*ImageBatches(labeled, add_noise, pseudo_images=student, workers=workers, **options)] for workers in (0, 2))
    )


@pytest.mark.parametrize("shard_sizes", [None, [2, 0, 1, 4]])
@pytest.mark.parametrize("accumulation_steps", [1, 2])
def test_ranks_and_micro_batches_divide_both_sets(shard_sizes, accumulation_steps):
    def loader_of_rank(rank, world_size, accumulation_steps):
        pseudo = make_images(7, SoftLabeled, 100, shard_sizes)
        return make_loader(
            pseudo=pseudo, count=24, batch_size=12, batch_slice=BatchSlice(rank, world_size, accumulation_steps)
        )

    by_rank = [[*iterate_epochs(loader_of_rank(rank, 2, accumulation_steps), 2)] for rank in range(2)]
    for batch_0, batch_1 in zip(*by_rank, strict=True):
        assert batch_0.step_images == batch_1.step_images == 18
        assert [sum(n < 100 for n in brightness(batch)) for batch in (batch_0, batch_1)] == [
            6 // accumulation_steps
        ] * 2
        assert abs(len(batch_0.images) - len(batch_1.images)) <= 1
    if shard_sizes is None:
        for step, batch in enumerate(iterate_epochs(loader_of_rank(0, 1, 1), 2)):
            micro_batches = slice(step * accumulation_steps, (step + 1) * accumulation_steps)
            divided = [
                n for batches in by_rank for micro_batch in batches[micro_batches] for n in brightness(micro_batch)
            ]
            assert sorted(divided) == sorted(brightness(batch))


def test_a_micro_batch_may_have_one_labeled_image_or_none():
    batches = make_loader(count=8, pseudo_batch_size=36, batch_size=4, batch_slice=BatchSlice(accumulation_steps=10))
    sizes = [(sum(n < 100 for n in brightness(batch)), len(batch.images)) for batch in batches]
    assert sizes == [*[(1, 4)] * 4, *[(0, 4)] * 6] * 2


def test_rejects_micro_batches_of_less_than_two_images():
    with pytest.raises(InputError, match=r"at least 2 per micro-batch \(2 ranks, 4 accumulation steps\), got 14"):
        make_loader(count=8, pseudo_batch_size=10, batch_size=4, batch_slice=BatchSlice(0, 2, 4))


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("labeled_images", [2, 3, 8])
@pytest.mark.parametrize("ratio", [0.5, 1.25, 14.0])
def test_loader_accepts_the_micro_batches_chosen_for_memory(ratio, labeled_images, world_size, monkeypatch):
    monkeypatch.setattr("lambdanets.training.micro_batches.largest_micro_batch", lambda *_: 2)
    recipe = replace(DIGITS, batch_size=4, pseudo_labels="a", pseudo_images="b", pseudo_ratio=ratio)
    if min(4, labeled_images) // world_size + recipe.pseudo_batch_size // world_size < 2:
        return
    for rank in range(world_size):
        world = World(rank, world_size, rank, world_size)
        batch_slice = with_micro_batch(
            recipe, ClassificationProbe(recipe, 3), torch.nn.Identity(), labeled_images, world
        )[1]
        batches = [
            *make_loader(count=labeled_images, pseudo_batch_size=recipe.pseudo_batch_size, batch_slice=batch_slice)
        ]
        assert len(batches) > 0
        assert all(len(batch.images) >= 2 for batch in batches)


def test_soft_pseudo_labels_convert_hard_labels_to_one_hot_targets():
    batch = next(iter(make_loader()))
    values = brightness(batch)
    assert batch.soft.tolist() == [number >= 100 for number in values]
    assert batch.labels.tolist() == [number % 100 % 3 for number in values]
    expected = np.where(np.array(values)[:, None] < 100, np.eye(3)[batch.labels], 0.2 + 0.4 * np.eye(3)[batch.labels])
    np.testing.assert_allclose(batch.targets, expected, atol=1e-7)
    assert batch.targets.dtype == torch.float32


def test_hard_pseudo_labels_have_no_soft_targets():
    batch = next(iter(make_loader(pseudo=make_images(7, first=100))))
    assert batch.targets is None
    assert batch.soft is None


def test_unreadable_pseudo_labeled_images_are_skipped_and_listed():
    batch = next(iter(make_loader(pseudo=make_images(7, SomeUnreadable, 100), pseudo_batch_size=7)))
    assert sorted(brightness(batch)[4:]) == [100, 102, 104, 106]
    assert len(batch.unreadable) == 3
    assert len(batch.soft) == len(batch.targets) == len(batch.labels) == 8
    assert batch.step_images == 11


@pytest.mark.parametrize(("count", "world_size"), [(0, 1), (1, 2), (2, 3)])
def test_rejects_fewer_pseudo_labeled_images_than_ranks(count, world_size):
    with pytest.raises(
        InputError, match=f"number of pseudo-labeled images must be at least {world_size}, one per rank, got {count}$"
    ):
        make_loader(
            count=12,
            pseudo=make_images(count, SoftLabeled, 100, [count]),
            batch_size=8,
            batch_slice=BatchSlice(0, world_size),
        )


def test_validation_has_no_pseudo_labeled_images():
    assert sum(len(batch.images) for batch in make_loader(training=False)) == 11


def compute_loss(batch, logits, smoothing):
    return cross_entropy(logits, batch, smoothing)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("pseudo", [make_images(7, SoftLabeled, 100), make_images(7, first=100)], ids=["soft", "hard"])
def test_label_smoothing_applies_only_to_hard_labels(pseudo, smoothing):
    batch = next(iter(make_loader(pseudo=pseudo)))
    logits = torch.randn(10, 3, dtype=torch.float64)
    expected = 0.0
    for row, number in zip(logits, brightness(batch), strict=True):
        label = number % 100 % 3
        if number >= 100 and isinstance(pseudo, SoftLabeled):
            target = [0.6 if i == label else 0.2 for i in range(3)]
        else:
            target = [(1 - smoothing) * (i == label) + smoothing / 3 for i in range(3)]
        expected -= sum(t * (x - row.exp().sum().log()) for t, x in zip(target, row, strict=True))
    torch.testing.assert_close(compute_loss(batch, logits, smoothing), expected, rtol=1e-6, atol=0)


def test_rejects_soft_labels_with_another_number_of_classes():
    batch = next(iter(make_loader()))
    with pytest.raises(InputError, match="pseudo-labels must have 3 classes, got 2"):
        compute_loss(batch._replace(targets=batch.targets[:, :2]), torch.zeros(10, 3), 0.1)
