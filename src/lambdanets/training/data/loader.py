"""Batches of labelled images in an order, and with random transforms, that depend on the seed alone."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lambdanets.errors import InputError
from lambdanets.training.data.images import UnreadableImage
from lambdanets.training.data.labelled_images import LabelledImages
from lambdanets.training.data.order import mixed, permuted, permuted_in_windows

_MODES = {1: "L", 3: "RGB"}


class Batch(NamedTuple):
    """Images (b, c, h, w), their labels (b,) and their numbers in the set (b,), both int64.

    Images that could not be read are left out and named in `unreadable` ("name: reason"), so a batch may be smaller
    than asked for, or empty: b is then 0 and `images` has the shape (0,).
    """

    images: Tensor
    labels: Tensor
    indices: Tensor
    unreadable: list[str]


class _Sample(NamedTuple):
    image: Tensor | None
    label: int
    number: int
    unreadable: str


class _Key(NamedTuple):
    epoch: int
    number: int


class ImageBatches:
    """A loader over labelled images that can go on in the middle of an epoch.

    Each call of `iter` runs from the batch after the last one handed out to the end of that epoch, so an epoch that was
    left early (or resumed from `state_dict`) is finished first, and the next call begins the next epoch. An epoch of
    training is a permutation drawn from the seed and the epoch (`permuted`, or `permuted_in_windows` for images in
    shards, which have `groups`); validation (`training=False`) goes in plain order, from the start each time. The
    transform's random numbers (Python's, NumPy's and torch's CPU generator) are seeded by seed, epoch and image, so
    neither the number of workers nor a resumption changes a pixel.

    The last batch of an epoch may be smaller, but one of a single image is dropped in training, as batch norm cannot
    use it; it is some other image in each epoch. `transform` takes a Pillow image, "L" or "RGB" by `channels`, and
    gives a tensor (c, h, w) of the same shape for every image.

    Raises InputError for an empty set, for a training set of one image and for arguments out of range.
    """

    def __init__(
        self,
        images: LabelledImages,
        transform: Callable[[Image.Image], Tensor],
        *,
        channels: int,
        batch_size: int,
        seed: int,
        training: bool,
        workers: int,
    ) -> None:
        if channels not in _MODES:
            raise InputError(f"expected 1 or 3 channels, but came {channels}")
        for name, value, least in (("batch_size", batch_size, 1), ("seed", seed, 0), ("workers", workers, 0)):
            if value < least:
                raise InputError(f"expected {name} of at least {least}, but came {value}")
        least_images = 2 if training else 1
        if len(images) < least_images:
            raise InputError(
                f"expected at least {least_images} images to {'train' if training else 'validate'} on, "
                f"but came {len(images)}"
            )
        self._count = len(images)
        self._groups: Sequence[int] | None = getattr(images, "groups", None)
        self._batch_size = batch_size
        self._seed = seed
        self._training = training
        self._served = 0
        self._schedule = _Schedule()
        self._loader = DataLoader(
            _Samples(images, transform, _MODES[channels], seed),
            batch_sampler=self._schedule,
            num_workers=workers,
            persistent_workers=workers > 0,  # a key carries its epoch, so a worker has no state to go stale
            collate_fn=_collate,
            pin_memory=torch.cuda.is_available(),
            generator=torch.Generator(),  # else each pass would draw from the caller's generator
        )

    def __len__(self) -> int:
        """The number of batches in a whole epoch."""
        full, rest = divmod(self._count, self._batch_size)
        return full + (rest > (1 if self._training else 0))

    def __iter__(self) -> Iterator[Batch]:
        epoch, done = divmod(self._served, len(self))
        size = self._batch_size
        keys = [_Key(epoch, number) for number in self._order(epoch)]
        self._schedule.batches = [keys[step * size : (step + 1) * size] for step in range(done, len(self))]
        for batch in self._loader:
            if self._training:
                self._served += 1  # before the batch is used: a checkpoint written after its step counts it
            yield batch

    def state_dict(self) -> dict[str, int]:
        """Say how many batches were handed out since training began (always 0 for validation)."""
        return {"served": self._served}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on after the batches a `state_dict` counted, from a loader of the same set, batch size and seed."""
        self._served = state["served"]

    def _order(self, epoch: int) -> list[int]:
        if not self._training:
            return list(range(self._count))
        if self._groups is not None:
            return permuted_in_windows(self._groups, self._seed, epoch).tolist()
        return permuted(self._count, self._seed, epoch).tolist()


class _Schedule:
    """The batches of keys that the next pass of the loader makes."""

    batches: list[list[_Key]]

    def __iter__(self) -> Iterator[list[_Key]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class _Samples(Dataset[_Sample]):
    def __init__(
        self, images: LabelledImages, transform: Callable[[Image.Image], Tensor], mode: str, seed: int
    ) -> None:
        self._images = images
        self._transform = transform
        self._mode = mode
        self._seed = seed

    def __getitems__(self, keys: list[_Key]) -> list[_Sample]:
        with _own_generators():
            return [self._sample(key) for key in keys]

    def _sample(self, key: _Key) -> _Sample:
        try:
            image, label = self._images.load(key.number)
        except UnreadableImage as error:
            return _Sample(None, 0, key.number, f"{self._images.name(key.number)}: {error.reason}")
        _seed_generators(mixed(self._seed, *key))
        return _Sample(self._transform(image.convert(self._mode)), label, key.number, "")


def _seed_generators(numbers: list[int]) -> None:
    random.seed(numbers[0])
    np.random.seed(np.array(numbers, dtype=np.uint64).view(np.uint32))
    torch.default_generator.manual_seed(numbers[1])  # torch.manual_seed would seed the GPUs as well


@contextmanager
def _own_generators() -> Iterator[None]:
    """Put the states of the three global generators back afterwards."""
    states: tuple[Any, Any, Tensor] = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


def _collate(samples: list[_Sample]) -> Batch:
    read = [sample for sample in samples if sample.image is not None]
    return Batch(
        images=torch.stack([sample.image for sample in read if sample.image is not None]) if read else torch.empty(0),
        labels=torch.tensor([sample.label for sample in read], dtype=torch.int64),
        indices=torch.tensor([sample.number for sample in read], dtype=torch.int64),
        unreadable=[sample.unreadable for sample in samples if sample.image is None],
    )
