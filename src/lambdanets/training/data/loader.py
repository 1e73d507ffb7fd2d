"""Batches of labelled images in an order, and with random transforms, that depend on the seed alone."""

import random
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils.signal_handling import _remove_worker_pids

from lambdanets.errors import InputError
from lambdanets.training.data.images import UnreadableImage
from lambdanets.training.data.labelled_images import LabelledImages
from lambdanets.training.data.order import Order, Share, mixed

_MODES = {1: "L", 3: "RGB"}
_PATIENCE = 3.0  # seconds that workers have to end


class Batch(NamedTuple):
    """Images (b, c, h, w), their labels (b,) and their numbers in the set (b,), both int64.

    Images that could not be read are left out and named in `unreadable` ("name: reason"), so a batch may be smaller
    than asked for, or empty: b is then 0 and `images` has the shape (0,). step_images: how many images the whole step
    was to have, over all processes and parts. targets: (b, classes) float32, where some label is a distribution over
    the classes; those rows are True in soft (b,), and their label is the most probable class.
    """

    images: Tensor
    labels: Tensor
    indices: Tensor
    unreadable: list[str]
    step_images: int = 0
    targets: Tensor | None = None
    soft: Tensor | None = None


class _Sample(NamedTuple):
    image: Tensor | None
    label: int | np.ndarray
    number: int
    unreadable: str
    step_images: int


class _Key(NamedTuple):
    beside: bool
    epoch: int
    number: int
    step_images: int


class ImageBatches:
    """A loader over labelled images that can go on in the middle of an epoch.

    Each call of `iter` runs from the step after the last one handed out to the end of that epoch, so an epoch that
    was left early (or resumed from `state_dict`) is finished first, and the next call begins the next epoch. An epoch
    of training comes in an order drawn from the seed and the epoch (`order.py`); validation (`training=False`) goes in
    plain order, from the start each time. The transform's random numbers (Python's, NumPy's and torch's CPU generator)
    are seeded by seed, epoch and image, so neither the number of workers nor a resumption changes a pixel.

    A step of training has batch_size images, whatever the share: this process takes every processes-th of them, and
    hands them out in parts, a batch each. The last step of an epoch may be smaller; it is left out where a part would
    have fewer than two images, as batch norm cannot use one, and its images come in other epochs. Validation hands out
    every processes-th image of the set, in batches of the size of a part.

    beside: another set, of which every step of training has beside_size images more; it has epochs of its own.
    `transform` takes a Pillow image, "L" or "RGB" by `channels`, and gives a tensor (c, h, w) of the same shape for
    every image.

    Raises InputError for an empty set, for a training set with fewer than two images for each part, for fewer images
    beside it than processes, and for arguments out of range.
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
        share: Share | None = None,
        beside: LabelledImages | None = None,
        beside_size: int = 0,
    ) -> None:
        if channels not in _MODES:
            raise InputError(f"expected 1 or 3 channels, but came {channels}")
        for name, value, least in (("batch_size", batch_size, 1), ("seed", seed, 0), ("workers", workers, 0)):
            if value < least:
                raise InputError(f"expected {name} of at least {least}, but came {value}")
        self._share = share or Share()
        beside = beside if training and beside_size else None
        self._beside_size = beside_size if beside is not None else 0
        least_images = self._least_images() if training else 1
        if len(images) < least_images:
            raise InputError(
                f"expected at least {least_images} images to {'train' if training else 'validate'} on, "
                f"but came {len(images)}"
            )
        if beside is not None and len(beside) < self._share.processes:
            raise InputError(
                f"expected at least {self._share.processes} images beside the labelled ones, one a process, "
                f"but came {len(beside)}"
            )
        if training and batch_size < least_images:
            raise InputError(
                f"expected batch_size of at least 2 images for each of {self._share.processes} processes and "
                f"{self._share.parts} parts, but came {batch_size + self._beside_size}"
            )
        self._images = images
        self._batch_size = batch_size
        self._least = least_images
        self._seed = seed
        self._training = training
        self._order = Order(images, seed, self._share)
        self._beside_order = Order(beside, seed + 1, self._share) if beside is not None else None
        self._served = 0
        self._schedule = _Schedule()
        self._loader = DataLoader(
            _Samples(images, beside, transform, _MODES[channels], seed),
            batch_sampler=self._schedule,
            num_workers=workers,
            persistent_workers=workers > 0,  # a key carries its epoch, so a worker has no state to go stale
            collate_fn=_collate,
            worker_init_fn=_leave_signals_to_parent,
            pin_memory=torch.cuda.is_available(),
            generator=torch.Generator(),  # else each pass would draw from the caller's generator
        )

    @property
    def steps(self) -> int:
        """The number of training steps in a whole epoch."""
        full, rest = divmod(len(self._images), self._batch_size)
        return full + (rest >= self._least)

    @property
    def parts(self) -> int:
        """Batches that this process hands out a step of training."""
        return self._share.parts

    def __len__(self) -> int:
        """The number of batches that this process hands out in a whole epoch."""
        return self.steps * self.parts if self._training else -(-len(self._own()) // self._part_size())

    def __iter__(self) -> Iterator[Batch]:
        self._schedule.length = len(self)
        if self._training:
            epoch, done = divmod(self._served, len(self))
            self._schedule.batches = self._steps(epoch, done)
        else:
            self._schedule.batches = self._validation()
        try:
            for batch in self._loader:
                if self._training:
                    self._served += 1  # before the batch is used: a checkpoint written after its step counts it
                yield batch
        except InputError as error:
            raise InputError(_own_words(error)) from error

    def close(self) -> None:
        """End the workers, by SIGKILL where they hang in an image for more than a few seconds.

        They leave other signals to their parent, so that nothing but this and its end do.
        """
        running: Any = self._loader._iterator
        if running is None:
            return
        self._loader._iterator = None
        # before PyTorch ends them: it waits for one after the other, and takes a killed one for an error if it knows it
        _remove_worker_pids(id(running))
        running._worker_pids_set = False
        late = threading.Timer(_PATIENCE, lambda: [worker.kill() for worker in running._workers])
        late.start()
        try:
            running._shutdown_workers()
        finally:
            late.cancel()

    def state_dict(self) -> dict[str, int]:
        """Say how many steps were handed out since training began (always 0 for validation)."""
        return {"steps": self._served // self.parts, "steps_per_epoch": self.steps}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on after the steps a `state_dict` counted, from a loader of the same set, batch size and seed.

        The share may be another. Raises InputError where that changes the number of steps in an epoch.
        """
        if state["steps_per_epoch"] != self.steps:
            raise InputError(
                f"expected {state['steps_per_epoch']} steps an epoch, as when the run began, but with "
                f"{self._share.processes} processes in {self.parts} parts there are {self.steps}; use fewer of them"
            )
        self._served = state["steps"] * self.parts

    def _steps(self, epoch: int, done: int) -> Iterator[list[_Key]]:
        """The keys of this process's batches in an epoch, after those that are done."""
        for step in range(done // self.parts, self.steps):
            first = step * self._batch_size
            size = min(self._batch_size, len(self._images) - first)
            count = size + self._beside_size
            keys = [_Key(False, epoch, number, count) for number in self._order.of_epoch(epoch, first, size).tolist()]
            if self._beside_order is not None:
                first_beside = (epoch * self.steps + step) * self._beside_size
                beside = self._beside_order.of_epochs(first_beside, self._beside_size)
                keys += [_Key(True, of_beside, number, count) for of_beside, number in beside]
            # every part has its share of both sets
            yield from (keys[part :: self.parts] for part in range(self.parts))

    def _validation(self) -> Iterator[list[_Key]]:
        own, size = self._own(), self._part_size()
        for start in range(0, len(own), size):
            yield [_Key(False, 0, number, 0) for number in own[start : start + size]]

    def _least_images(self) -> int:
        """How many images a step of training must have of the first set, so that each part has two of both sets."""
        processes = self._share.processes
        return max(1, processes * (2 * self._share.parts - self._beside_size // processes))

    def _own(self) -> Sequence[int]:
        return range(self._share.process, len(self._images), self._share.processes)

    def _part_size(self) -> int:
        return max(1, self._batch_size // (self._share.processes * self.parts))


class _Schedule:
    """The batches of keys that the next pass of the loader makes."""

    batches: Iterator[list[_Key]]
    length: int

    def __iter__(self) -> Iterator[list[_Key]]:
        return self.batches

    def __len__(self) -> int:
        return self.length


class _Samples(Dataset[_Sample]):
    def __init__(
        self,
        images: LabelledImages,
        beside: LabelledImages | None,
        transform: Callable[[Image.Image], Tensor],
        mode: str,
        seed: int,
    ) -> None:
        self._sets = (images, beside)
        self._transform = transform
        self._mode = mode
        self._seed = seed

    def __getitems__(self, keys: list[_Key]) -> list[_Sample]:
        with _own_generators():
            return [self._sample(key) for key in keys]

    def _sample(self, key: _Key) -> _Sample:
        images = self._sets[key.beside]
        assert images is not None
        try:
            image, label = images.load(key.number)
        except UnreadableImage as error:
            return _Sample(None, 0, key.number, f"{images.name(key.number)}: {error.reason}", key.step_images)
        _seed_generators(mixed(self._seed + key.beside, key.epoch, key.number))
        return _Sample(self._transform(image.convert(self._mode)), label, key.number, "", key.step_images)


def _leave_signals_to_parent(worker: int) -> None:
    """A signal to the whole group is for the training process, which ends its workers after a checkpoint."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _own_words(error: InputError) -> str:
    """What an error says, without the traceback that PyTorch puts before it where a worker raised it."""
    return str(error).strip().rpartition(f"{InputError.__module__}.InputError: ")[2]


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
    soft = [isinstance(sample.label, np.ndarray) for sample in read]
    labels = [int(np.argmax(sample.label)) if isinstance(sample.label, np.ndarray) else sample.label for sample in read]
    return Batch(
        images=torch.stack([sample.image for sample in read if sample.image is not None]) if read else torch.empty(0),
        labels=torch.tensor(labels, dtype=torch.int64),
        indices=torch.tensor([sample.number for sample in read], dtype=torch.int64),
        unreadable=[sample.unreadable for sample in samples if sample.image is None],
        step_images=samples[0].step_images,
        targets=_targets([sample.label for sample in read]) if any(soft) else None,
        soft=torch.tensor(soft) if any(soft) else None,
    )


def _targets(labels: Sequence[int | np.ndarray]) -> Tensor:
    classes = next(len(label) for label in labels if isinstance(label, np.ndarray))
    rows = np.zeros((len(labels), classes), np.float32)
    for row, label in zip(rows, labels, strict=True):
        if isinstance(label, np.ndarray):
            row[:] = label
        else:
            row[label] = 1
    return torch.from_numpy(rows)
