"""Batches of labeled and pseudo-labeled images."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from data.test_batches import images as make_images
from data.test_batches import to_tensor
from lambdanets.data.labeled_images import ImageFiles, image_batches
from lambdanets.data.order import BatchSlice
from lambdanets_lab.pseudo.student import StudentImages, StudentOrder, StudentTask


class SoftLabeled(ImageFiles):
    """Images in shards with soft labels over 3 classes, of brightness 100, 101, ..."""

    def load(self, index: int) -> tuple[Image.Image, np.ndarray]:
        _, label = super().load(index)
        distribution = np.full(3, 0.2, np.float32)
        distribution[label] = 0.6
        return Image.new("L", (2, 2), 100 + index), distribution


def make_loader(*, labeled=11, shard_sizes=(7,), pseudo_batch_size=6, batch_size=4, smoothing=0.0, **options):
    """Load labeled images of brightness 0, 1, ... and pseudo-labeled images of brightness 100, 101, ..."""
    pseudo = make_images(sum(shard_sizes), SoftLabeled)
    pseudo.shard_sizes = shard_sizes
    images = StudentImages(make_images(labeled), pseudo, 3, smoothing)
    batch_slice = options.get("batch_slice", BatchSlice())
    order = StudentOrder(images, batch_size, pseudo_batch_size, 0, batch_slice)
    options = {"seed": 0, "training": True, "workers": 0, "order": order} | options
    return image_batches(images, to_tensor, batch_size=batch_size, **options)


def brightness(batch):
    return batch.images[:, 0, 0, 0].int().tolist()


def iterate_epochs(batches, count):
    for _ in range(count):
        yield from batches


@pytest.mark.parametrize("shard_sizes", [[7], [2, 0, 1, 4]])
def test_pseudo_labeled_images_have_their_own_epochs(shard_sizes):
    loader = make_loader(labeled=12, shard_sizes=shard_sizes, pseudo_batch_size=4)
    # 14 epochs of 3 steps with 4 pseudo-labeled images are 24 epochs over 7 images
    loaded = [number for batch in iterate_epochs(loader, 14) for number in brightness(batch) if number >= 100]
    assert Counter(loaded) == dict.fromkeys(range(100, 107), 24)
    epochs = [loaded[first : first + 7] for first in range(0, len(loaded), 7)]
    assert all(sorted(epoch) == [*range(100, 107)] for epoch in epochs)
    assert len({*map(tuple, epochs)}) > 12


@pytest.mark.parametrize("accumulation_steps", [1, 2])
def test_ranks_and_micro_batches_divide_both_sets(accumulation_steps):
    slices = [BatchSlice(rank, 2, accumulation_steps) for rank in range(2)]
    loaders = [make_loader(labeled=24, batch_size=12, batch_slice=batch_slice) for batch_slice in slices]
    for batches in zip(*(iterate_epochs(loader, 2) for loader in loaders), strict=True):
        assert [batch.step_images for batch in batches] == [18, 18]
        assert [sum(n < 100 for n in brightness(batch)) for batch in batches] == [6 // accumulation_steps] * 2
        assert abs(len(batches[0].images) - len(batches[1].images)) <= 1


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_label_smoothing_applies_only_to_hard_labels(smoothing):
    batch = next(iter(make_loader(smoothing=smoothing)))
    one_hot = np.eye(3)[[number % 100 % 3 for number in brightness(batch)]]
    is_pseudo = np.array(brightness(batch))[:, None] >= 100
    expected = np.where(is_pseudo, 0.2 + 0.4 * one_hot, smoothing / 3 + (1 - smoothing) * one_hot)
    np.testing.assert_allclose(batch.targets, expected, atol=1e-7)
    assert batch.targets.dtype == torch.float32
    task = SimpleNamespace(logits=lambda batch: batch.images)
    sums = StudentTask.losses(task, batch._replace(images=torch.zeros(10, 3)))
    assert sums["loss"].item() == pytest.approx(10 * np.log(3), rel=1e-6)
    assert sums["top1"].item() == sum(n % 100 % 3 == 0 for n in brightness(batch))
