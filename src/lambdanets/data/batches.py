"""A DataLoader whose order and augmentation depend only on the seed, and which can resume within an epoch."""

import random
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils.signal_handling import _remove_worker_pids

from lambdanets.data.images import UnreadableImage
from lambdanets.data.order import BatchSlice, Order, derive_seeds
from lambdanets.errors import InputError
from lambdanets.signals import SIGNALS, exit_with_parent

_KILL_AFTER = 3.0  # seconds after which workers that have not exited are killed


class NamedImages(Protocol):
    """A set of images with a name for each index."""

    def __len__(self) -> int:
        """The number of images."""

    def name(self, index: int) -> str:
        """The name of an image in messages."""


class Sample(NamedTuple):
    """A loaded image.

    content: the result of `load`, or None if the image cannot be read.
    image_index: index of the image in its set.
    unreadable: "name: reason" if the image cannot be read, else "".
    step_images: number of images in the whole step, over all ranks and micro-batches.
    """

    content: Any
    image_index: int
    unreadable: str
    step_images: int


class _Key(NamedTuple):
    epoch: int
    image_index: int
    step_images: int


BatchT = TypeVar("BatchT")
# load(images, index) returns the content of a sample, or raises UnreadableImage
Load = Callable[[Any, int], Any]


class Batches(Generic[BatchT]):
    """A DataLoader over a set of images that can resume in the middle of an epoch.

    load: load(images, index) returns the content of a sample, or raises UnreadableImage.
    collate: makes a batch from a list of samples.
    batch_size: images per training step, over all ranks and micro-batches.
    batch_slice: the rank, world size, number of accumulation steps and smallest micro-batch.
    order: the images of each training step; by default `Order`.

    `iter` starts after the last batch that was yielded and stops at the end of that epoch. An epoch that was left
    early, or resumed with `load_state_dict`, is therefore finished first. Training epochs are shuffled by seed and
    epoch (`order.py`). Validation (`training=False`) is not shuffled and always starts at the first image.
    The random generators that `load` may use (of Python, NumPy, and torch on the CPU) are seeded by seed, epoch and
    index, so the images depend neither on the number of workers nor on resuming.

    In training, each rank takes every world_size-th image of a step and yields them in accumulation_steps
    micro-batches. The last step of an epoch may be smaller; it is dropped if a micro-batch would have too few images.
    In validation, each rank yields every world_size-th image of the set.

    Workers persist between epochs: use the batches in a `with` block, or call `close`. Workers also exit when their
    parent process is killed.

    Raises InputError for an empty set, and for too few training images per micro-batch.
    """

    def __init__(
        self,
        images: NamedImages,
        load: Load,
        collate: Callable[[list[Sample]], BatchT],
        *,
        batch_size: int,
        seed: int,
        training: bool,
        workers: int,
        batch_slice: BatchSlice | None = None,
        order: Order | None = None,
    ) -> None:
        self._slice = batch_slice or BatchSlice()
        if not len(images):
            raise InputError(f"number of {'training' if training else 'validation'} images must be at least 1, got 0")
        if training and order is None:
            min_images = self._slice.world_size * self._slice.accumulation_steps * self._slice.min_micro_batch
            order = Order(images, batch_size, seed, self._slice, min_images)
        self.collate = collate
        self._images = images
        self._batch_size = batch_size
        self._training = training
        self._order = order
        self._num_yielded = 0  # training batches
        self._sampler = _KeySampler()
        self.steps_per_epoch = 0 if order is None else order.steps_per_epoch
        self._dataset = _SampleDataset(images, load, seed)
        self._loader = DataLoader(
            self._dataset,
            batch_sampler=self._sampler,
            num_workers=workers,
            persistent_workers=workers > 0,  # workers have no state, because keys include the epoch
            collate_fn=collate,
            worker_init_fn=_init_worker,
            pin_memory=torch.cuda.is_available(),
            generator=torch.Generator(),  # otherwise each epoch would draw from the global generator
        )

    @property
    def accumulation_steps(self) -> int:
        """Micro-batches per training step on this rank."""
        return self._slice.accumulation_steps

    def sample(self, index: int) -> Sample:
        """Load an image as in the first epoch, without changing the state."""
        (sample,) = self._dataset.__getitems__([_Key(0, index, 1)])
        return sample

    def __len__(self) -> int:
        """The number of batches of an epoch on this rank."""
        if self._training:
            return self.steps_per_epoch * self.accumulation_steps
        return -(-len(self._validation_indices()) // self._micro_batch_size())

    def __iter__(self) -> Iterator[BatchT]:
        self._sampler.length = len(self)
        if self._training:
            epoch, num_done = divmod(self._num_yielded, len(self))
            self._sampler.batches = self._training_keys(epoch, num_done)
        else:
            self._sampler.batches = self._validation_keys()
        try:
            for batch in self._loader:
                if self._training:
                    # before yield, so that a checkpoint written after the batch's step counts it
                    self._num_yielded += 1
                yield batch
        except InputError as error:
            raise InputError(_without_traceback(error)) from error
        except (ConnectionError, EOFError) as error:  # while a killed worker sends a batch
            raise RuntimeError("DataLoader worker exited unexpectedly") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Shut down the workers, and kill those that have not exited after 3 seconds.

        Workers ignore SIGINT, SIGTERM and SIGHUP (`_init_worker`).
        """
        iterator: Any = self._loader._iterator
        if iterator is None:
            return
        self._loader._iterator = None
        # otherwise PyTorch would report killed workers as errors
        _remove_worker_pids(id(iterator))
        iterator._worker_pids_set = False
        kill_timer = threading.Timer(_KILL_AFTER, lambda: [worker.kill() for worker in iterator._workers])
        kill_timer.start()
        try:
            iterator._shutdown_workers()
        finally:
            kill_timer.cancel()

    def state_dict(self) -> dict[str, int]:
        """Return the number of training steps yielded so far (0 for validation), and the steps per epoch."""
        return {"steps": self._num_yielded // self.accumulation_steps, "steps_per_epoch": self.steps_per_epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Resume after the steps in `state`, which must be from the same set, batch size and seed.

        The batch slice may differ. Raises InputError if the steps per epoch differ because of it.
        """
        if state["steps_per_epoch"] != self.steps_per_epoch:
            raise InputError(
                f"steps per epoch must be {state['steps_per_epoch']}, as before, got {self.steps_per_epoch} "
                f"with {self._slice.world_size} ranks and {self.accumulation_steps} accumulation steps; use fewer"
            )
        self._num_yielded = state["steps"] * self.accumulation_steps

    def _training_keys(self, epoch: int, num_done: int) -> Iterator[list[_Key]]:
        """Yield the keys of this rank's micro-batches in an epoch, without the first `num_done` micro-batches."""
        assert self._order is not None
        accumulation_steps = self.accumulation_steps
        for step in range(num_done // accumulation_steps, self.steps_per_epoch):
            images, step_images = self._order.step(epoch, step)
            keys = [_Key(*image, step_images) for image in images]
            # strided, so that each micro-batch has images of both sets of an order with two sets
            yield from (keys[first::accumulation_steps] for first in range(accumulation_steps))

    def _validation_keys(self) -> Iterator[list[_Key]]:
        indices, size = self._validation_indices(), self._micro_batch_size()
        for start in range(0, len(indices), size):
            yield [_Key(0, index, 0) for index in indices[start : start + size]]

    def _validation_indices(self) -> Sequence[int]:
        return range(self._slice.rank, len(self._images), self._slice.world_size)

    def _micro_batch_size(self) -> int:
        return max(1, self._batch_size // (self._slice.world_size * self.accumulation_steps))


class _KeySampler:
    """A batch sampler that yields the keys of the current epoch."""

    batches: Iterator[list[_Key]]
    length: int

    def __iter__(self) -> Iterator[list[_Key]]:
        return self.batches

    def __len__(self) -> int:
        return self.length


class _SampleDataset(Dataset[Sample]):
    def __init__(self, images: NamedImages, load: Load, seed: int) -> None:
        self._images = images
        self._load = load
        self._seed = seed

    def __getitems__(self, keys: list[_Key]) -> list[Sample]:
        with _preserved_rng_states():
            return [self._sample(key) for key in keys]

    def _sample(self, key: _Key) -> Sample:
        images = self._images
        _seed_generators(derive_seeds(self._seed, key.epoch, key.image_index))
        try:
            return Sample(self._load(images, key.image_index), key.image_index, "", key.step_images)
        except UnreadableImage as error:
            return Sample(None, key.image_index, f"{images.name(key.image_index)}: {error.reason}", key.step_images)


def _init_worker(worker: int) -> None:
    """Ignore signals to the process group, because the training process first saves a checkpoint."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    exit_with_parent()  # PyTorch checks the parent only between batches, not while a worker hangs in an image


def _without_traceback(error: InputError) -> str:
    """Return the message of an error without the traceback that PyTorch prepends in workers."""
    return str(error).strip().rpartition(f"{InputError.__module__}.InputError: ")[2]


def _seed_generators(seeds: list[int]) -> None:
    random.seed(seeds[0])
    np.random.seed(np.array(seeds, dtype=np.uint64).view(np.uint32))
    torch.default_generator.manual_seed(seeds[1])  # torch.manual_seed would seed the GPUs as well


@contextmanager
def _preserved_rng_states() -> Iterator[None]:
    """Restore the states of the global generators of Python, NumPy and torch after the block."""
    states: tuple[Any, Any, Tensor] = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
