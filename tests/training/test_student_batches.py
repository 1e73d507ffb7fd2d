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
from lambdanets.data.shards.images import open_shards
from lambdanets.errors import InputError
from lambdanets.recipes.digits import recipe as DIGITS
from lambdanets.training.classification.model import ClassificationProbe
from lambdanets.training.classification.module import Classification
from lambdanets.training.distributed import World
from lambdanets.training.micro_batches import with_micro_batch
from lambdanets.training.pseudo_labels.student_images import open_student_images
from training.teachers import CLASSES, write_selection

SLICES = [BatchSlice(), BatchSlice(accumulation_steps=3), BatchSlice(0, 2), BatchSlice(1, 2, 2)]


class SoftLabeled(ImageArray):
    """Images whose labels are distributions over 3 classes, with or without groups."""

    groups: list[int] | None

    def load(self, index: int) -> tuple[Image.Image, np.ndarray]:
        image, label = super().load(index)
        distribution = np.full(3, 0.2, np.float32)
        distribution[label] = 0.6
        return image, distribution


class SomeUnreadable(SoftLabeled):
    def load(self, index: int) -> tuple[Image.Image, np.ndarray]:
        if index % 2:
            raise UnreadableImage(self.name(index), "it is damaged")
        return super().load(index)


def images(count, kind=ImageArray, first=0, groups=None):
    pixels = np.repeat(np.arange(first, first + count, dtype=np.uint8), 4).reshape(count, 2, 2)
    labeled = kind(pixels, [index % 3 for index in range(count)], "numbers")
    if groups is not None:
        labeled.groups = groups
    return labeled


def exact(image):
    return torch.from_numpy(np.array(image)).float()[None]


def noisy(image):
    """Draw from every random generator that a transform may use."""
    return exact(image) + random.random() / 3 + np.random.random() / 3 + torch.rand(()) / 3


def loader(transform=exact, *, count=11, pseudo=None, size=6, batch_size=4, **options):
    """11 labeled images of brightness 0 to 10, and 7 pseudo-labeled ones of 100 to 106."""
    pseudo = images(7, SoftLabeled, 100) if pseudo is None else pseudo
    options = {"channels": 1, "seed": 0, "training": True, "workers": 0} | options
    options |= {"batch_size": batch_size, "pseudo_images": pseudo, "pseudo_batch_size": size}
    return ImageBatches(images(count), transform, **options)


def brightness(batch):
    return batch.images[:, 0, 0, 0].int().tolist()


def test_every_step_has_the_batch_sizes_of_both_sets():
    batches = loader()
    assert len(batches) == 3
    for _ in range(2):
        sizes = [
            (sum(n < 100 for n in brightness(batch)), sum(n >= 100 for n in brightness(batch))) for batch in batches
        ]
        assert sizes == [(4, 6), (4, 6), (3, 6)]
    assert [batch.step_images for batch in batches] == [10, 10, 9]


@pytest.mark.parametrize(("groups", "of"), [(None, 1), (None, 2), ([2, 0, 1, 4], 1)])
def test_pseudo_labeled_images_have_epochs_of_their_own(groups, of):
    pseudo = images(7, SoftLabeled, 100, groups)
    loaders = [loader(count=12, pseudo=pseudo, size=4, batch_slice=BatchSlice(process, of)) for process in range(of)]
    # 14 epochs of 3 steps of 4: 24 epochs of 7
    steps = zip(*(passes(each, 14) for each in loaders), strict=True)
    seen = [number for batches in steps for batch in batches for number in brightness(batch) if number >= 100]
    assert Counter(seen) == dict.fromkeys(range(100, 107), 24)
    if of == 1:
        epochs = [seen[first : first + 7] for first in range(0, len(seen), 7)]
        assert all(sorted(epoch) == [*range(100, 107)] for epoch in epochs)
        assert len({*map(tuple, epochs)}) > 12


def passes(batches, count):
    for _ in range(count):
        yield from batches


def test_pseudo_labeled_images_leave_the_order_of_labeled_ones_unchanged():
    labeled = ImageBatches(images(11), noisy, channels=1, batch_size=4, seed=0, training=True, workers=0)
    for both, expected in zip(loader(noisy), labeled, strict=True):
        assert torch.equal(both.images[: len(expected.images)], expected.images)


def test_repeated_images_are_augmented_differently():
    seen = [
        value for batch in passes(loader(noisy, count=8, size=7), 4) for value in batch.images[4:, 0, 0, 0].tolist()
    ]
    assert len(seen) == len({*seen}) == 8 * 7


@pytest.mark.parametrize("batch_slice", SLICES, ids=str)
@pytest.mark.parametrize("groups", [None, [2, 0, 1, 4]])
@pytest.mark.parametrize("done", [0, 1, 2, 3, 4, 7])
def test_batches_of_both_sets_resume_in_mid_epoch(groups, done, batch_slice):
    def make_loader():
        return loader(
            noisy, pseudo=images(7, SoftLabeled, 100, groups), count=24, batch_size=12, batch_slice=batch_slice
        )

    whole = [*passes(make_loader(), 8)]
    first = make_loader()
    list(islice(passes(first, 8), done * batch_slice.accumulation_steps))
    second = make_loader()
    second.load_state_dict(first.state_dict())
    rest = [*second, *second]
    assert_same(rest, whole[done * batch_slice.accumulation_steps :][: len(rest)])


def test_batches_of_both_sets_do_not_depend_on_workers(shards, tmp_path):
    labeled = open_shards(str(shards))[0]["train"]
    student = open_student_images(str(shards), write_selection(shards, tmp_path / "s"), CLASSES, soft=True)
    options = {"channels": 1, "batch_size": 4, "seed": 0, "training": True, "pseudo_batch_size": 6}
    assert_same(
        *([*ImageBatches(labeled, noisy, pseudo_images=student, workers=workers, **options)] for workers in (0, 2))
    )


@pytest.mark.parametrize("groups", [None, [2, 0, 1, 4]])
@pytest.mark.parametrize("accumulation_steps", [1, 2])
def test_ranks_and_micro_batches_divide_both_sets(groups, accumulation_steps):
    def make_loader(rank, world_size, accumulation_steps):
        pseudo = images(7, SoftLabeled, 100, groups)
        return loader(
            pseudo=pseudo, count=24, batch_size=12, batch_slice=BatchSlice(rank, world_size, accumulation_steps)
        )

    by_rank = [[*passes(make_loader(rank, 2, accumulation_steps), 2)] for rank in range(2)]
    for first, second in zip(*by_rank, strict=True):
        assert first.step_images == second.step_images == 18
        assert [sum(n < 100 for n in brightness(batch)) for batch in (first, second)] == [6 // accumulation_steps] * 2
        assert abs(len(first.images) - len(second.images)) <= 1
    if groups is None:
        for step, batch in enumerate(passes(make_loader(0, 1, 1), 2)):
            micro_batches = slice(step * accumulation_steps, (step + 1) * accumulation_steps)
            divided = [n for batches in by_rank for each in batches[micro_batches] for n in brightness(each)]
            assert sorted(divided) == sorted(brightness(batch))


def test_a_micro_batch_may_have_one_labeled_image_or_none():
    batches = loader(count=8, size=36, batch_size=4, batch_slice=BatchSlice(accumulation_steps=10))
    sizes = [(sum(n < 100 for n in brightness(batch)), len(batch.images)) for batch in batches]
    assert sizes == [*[(1, 4)] * 4, *[(0, 4)] * 6] * 2


def test_rejects_micro_batches_of_less_than_two_images():
    with pytest.raises(InputError, match=r"at least 2 per micro-batch \(2 ranks, 4 accumulation steps\), got 14"):
        loader(count=8, size=10, batch_size=4, batch_slice=BatchSlice(0, 2, 4))


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("labeled_images", [2, 3, 8])
@pytest.mark.parametrize("ratio", [0.5, 1.25, 14.0])
def test_chosen_micro_batches_can_be_loaded(ratio, labeled_images, count, monkeypatch):
    monkeypatch.setattr("lambdanets.training.micro_batches.largest_micro_batch", lambda *_: 2)
    recipe = replace(DIGITS, batch_size=4, pseudo_labels="a", pseudo_images="b", pseudo_ratio=ratio)
    if min(4, labeled_images) // count + recipe.pseudo_batch_size // count < 2:
        return
    for rank in range(count):
        processes = World(rank, count, rank, count)
        batch_slice = with_micro_batch(
            recipe, ClassificationProbe(recipe, 3), torch.nn.Identity(), labeled_images, processes
        )[1]
        batches = [*loader(count=labeled_images, size=recipe.pseudo_batch_size, batch_slice=batch_slice)]
        assert len(batches) > 0
        assert all(len(batch.images) >= 2 for batch in batches)


def test_soft_pseudo_labels_turn_hard_labels_into_distributions():
    batch = next(iter(loader()))
    values = brightness(batch)
    assert batch.soft.tolist() == [number >= 100 for number in values]
    assert batch.labels.tolist() == [number % 100 % 3 for number in values]
    expected = np.where(np.array(values)[:, None] < 100, np.eye(3)[batch.labels], 0.2 + 0.4 * np.eye(3)[batch.labels])
    np.testing.assert_allclose(batch.targets, expected, atol=1e-7)
    assert batch.targets.dtype == torch.float32


def test_hard_pseudo_labels_have_no_distributions():
    batch = next(iter(loader(pseudo=images(7, first=100))))
    assert batch.targets is None
    assert batch.soft is None


def test_unreadable_images_of_either_set_are_skipped_and_listed():
    batch = next(iter(loader(pseudo=images(7, SomeUnreadable, 100), size=7)))
    assert sorted(brightness(batch)[4:]) == [100, 102, 104, 106]
    assert len(batch.unreadable) == 3
    assert len(batch.soft) == len(batch.targets) == len(batch.labels) == 8
    assert batch.step_images == 11


@pytest.mark.parametrize(("count", "of"), [(0, 1), (1, 2), (2, 3)])
def test_rejects_fewer_pseudo_labeled_images_than_ranks(count, of):
    with pytest.raises(InputError, match=f"pseudo-labeled images must be at least {of}, one per rank, got {count}$"):
        loader(count=12, pseudo=images(count, SoftLabeled, 100, [count]), batch_size=8, batch_slice=BatchSlice(0, of))


def test_validation_has_no_pseudo_labeled_images():
    assert sum(len(batch.images) for batch in loader(training=False)) == 11


def loss_of(batch, logits, smoothing):
    module = Classification(torch.nn.Identity(), replace(DIGITS, label_smoothing=smoothing), 3, 1, "")
    return module._loss(logits, batch)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("pseudo", [images(7, SoftLabeled, 100), images(7, first=100)], ids=["soft", "hard"])
def test_label_smoothing_applies_only_to_hard_labels(pseudo, smoothing):
    batch = next(iter(loader(pseudo=pseudo)))
    logits = torch.randn(10, 3, dtype=torch.float64)
    expected = 0.0
    for row, number in zip(logits, brightness(batch), strict=True):
        label = number % 100 % 3
        if number >= 100 and isinstance(pseudo, SoftLabeled):
            target = [0.6 if i == label else 0.2 for i in range(3)]
        else:
            target = [(1 - smoothing) * (i == label) + smoothing / 3 for i in range(3)]
        expected -= sum(t * (x - row.exp().sum().log()) for t, x in zip(target, row, strict=True))
    torch.testing.assert_close(loss_of(batch, logits, smoothing), expected, rtol=1e-6, atol=0)


def test_rejects_distributions_over_another_number_of_classes():
    batch = next(iter(loader()))
    with pytest.raises(InputError, match="pseudo-labels must have 3 classes, got 2"):
        loss_of(batch._replace(targets=batch.targets[:, :2]), torch.zeros(10, 3), 0.1)
