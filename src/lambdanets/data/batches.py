"""A DataLoader whose order and augmentation depend only on the seed, and which can resume within an epoch."""

import multiprocessing.queues
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils.signal_handling import _remove_worker_pids

from lambdanets.data.images import UnreadableImage
from lambdanets.data.order import BatchSlice, Order, derive_seeds
from lambdanets.errors import InputError, one_line
from lambdanets.signals import SIGNALS
from lambdanets.terminal import echo

_KILL_AFTER = 3.0  # seconds after which workers that have not exited are killed


class Sample(NamedTuple):
    """An image: (image, target), or None if it cannot be read; its index; "name: reason" if it cannot be read."""

    content: tuple[Any, Any] | None
    image_index: int
    unreadable: str
    step_images: int


class Batch(NamedTuple):
    """A batch of b images.

    images, targets: the result of `collate`, without images that could not be read.
    indices: (b,) int64, of the images in the set.
    unreadable: "name: reason" of each image that could not be read.
    step_images: number of images in the whole step, over all ranks and micro-batches.
    """

    images: Any
    targets: Any
    indices: Tensor
    unreadable: list[str]
    step_images: int


class _Key(NamedTuple):
    epoch: int
    image_index: int
    step_images: int


Load = Callable[[Any, int], tuple[Any, Any]]
Collate = Callable[[list[Any], list[Any]], tuple[Any, Any]]


def keep_lists(images: list[Any], targets: list[Any]) -> tuple[list[Any], list[Any]]:
    """Collate images of different sizes."""
    return images, targets


class Batches(AbstractContextManager["Batches"]):
    """A DataLoader over a set of images that can resume in the middle of an epoch.

    images: a set with `len(images)` and `images.name(index)`, for messages.
    load: load(images, index) returns an image and its target, or raises UnreadableImage.
    collate: collate(images, targets) makes those of a batch, which may be none; by default lists.
    batch_size: images per training step, over all ranks and micro-batches.
    batch_slice: the rank, world size, number of accumulation steps and smallest micro-batch.
    order: the images of each training step; by default `Order`.

    `iter` starts after the last batch that was yielded and stops at the end of that epoch. An epoch that was left
    early, or resumed with `load_state_dict`, is therefore finished first. Training epochs are shuffled by seed and
    epoch. Validation (`training=False`) is not shuffled and always starts at the first image.
    The random generators that `load` may use (of Python, NumPy, and torch on the CPU) are seeded by seed, epoch and
    index, so the images depend neither on the number of workers nor on resuming.

    In training, each rank takes every world_size-th image of a step and yields them in accumulation_steps
    micro-batches. The last step of an epoch may be smaller; it is dropped if a micro-batch would have too few images.
    In validation, each rank yields every world_size-th image of the set.

    Workers persist between epochs: use the batches in a `with` block, or call `close`. They also exit when their
    parent process is killed.

    Raises InputError for an empty set, and for fewer training images than a step needs.
    """

    def __init__(
        self,
        images: Any,
        load: Load,
        collate: Collate = keep_lists,
        *,
        batch_size: int,
        seed: int = 0,
        training: bool = False,
        workers: int = 0,
        batch_slice: BatchSlice | None = None,
        order: Order | None = None,
    ) -> None:
        self.batch_slice = batch_slice = batch_slice or BatchSlice()
        if not len(images):
            raise InputError(f"number of {'training' if training else 'validation'} images must be at least 1, got 0")
        ranks, self.accumulation_steps = batch_slice.world_size, batch_slice.accumulation_steps
        if training and order is None:
            min_images = ranks * self.accumulation_steps * batch_slice.min_micro_batch
            order = Order(images, batch_size, seed, batch_slice, min_images)
        self._order = order
        self.steps_per_epoch = 0 if order is None else order.steps_per_epoch
        self._num_yielded = 0  # training batches
        self._validation: list[range] = []
        if not training:
            indices = range(batch_slice.rank, len(images), ranks)
            size = max(1, batch_size // (ranks * self.accumulation_steps))
            self._validation = [indices[first : first + size] for first in range(0, len(indices), size)]
        self.collate = partial(_collate, collate=collate)
        self._sampler = _Sampler()
        self._dataset = _SampleDataset(images, load, seed)
        self._loader = DataLoader(
            self._dataset,
            batch_sampler=self._sampler,
            num_workers=workers,
            persistent_workers=workers > 0,  # workers have no state, because keys include the epoch
            collate_fn=self.collate,
            worker_init_fn=_init_worker,
            pin_memory=torch.cuda.is_available(),
            generator=torch.Generator(),  # otherwise each epoch would draw from the global generator
        )

    def sample(self, index: int) -> Sample:
        """Load an image as in the first epoch, without changing the state."""
        (sample,) = self._dataset.__getitems__([_Key(0, index, 1)])
        return sample

    def __len__(self) -> int:
        """The number of batches of an epoch on this rank."""
        return len(self._validation) if self._order is None else self.steps_per_epoch * self.accumulation_steps

    def __iter__(self) -> Iterator[Batch]:
        if self._order is None:
            self._sampler.keys = ([_Key(0, index, 0) for index in batch] for batch in self._validation)
        else:
            self._sampler.keys = self._training_keys(self._order, *divmod(self._num_yielded, len(self)))
        try:
            for batch in self._loader:
                # before yield, so that a checkpoint written after the batch's step counts it
                self._num_yielded += self._order is not None
                yield batch
        except InputError as error:  # of a worker: PyTorch prepends the traceback to the message
            raise InputError(str(error).strip().rpartition(f"{InputError.__module__}.InputError: ")[2]) from error
        except (ConnectionError, EOFError) as error:  # while a killed worker sends a batch
            raise RuntimeError("DataLoader worker exited unexpectedly") from error

    def _training_keys(self, order: Order, epoch: int, num_done: int) -> Iterator[list[_Key]]:
        """Yield the keys of this rank's micro-batches in an epoch, without the first `num_done` micro-batches."""
        for step in range(num_done // self.accumulation_steps, self.steps_per_epoch):
            images, step_images = order.step(epoch, step)
            keys = [_Key(*image, step_images) for image in images]
            # strided, so that each micro-batch has images of both sets of an order with two sets
            yield from (keys[first :: self.accumulation_steps] for first in range(self.accumulation_steps))

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Shut down the workers, which ignore signals, and kill those that have not exited after 3 seconds."""
        iterator: Any = self._loader._iterator
        if iterator is None:
            return
        self._loader._iterator = None
        _remove_worker_pids(id(iterator))  # otherwise PyTorch would report killed workers as errors
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
                f"with {self.batch_slice.world_size} ranks and {self.accumulation_steps} accumulation steps; use fewer"
            )
        self._num_yielded = state["steps"] * self.accumulation_steps


def _collate(samples: list[Sample], collate: Collate) -> Batch:
    readable = [(*sample.content, sample.image_index) for sample in samples if sample.content is not None]
    images, targets = collate([image for image, _, _ in readable], [target for _, target, _ in readable])
    indices = torch.tensor([index for _, _, index in readable], dtype=torch.int64)
    unreadable = [sample.unreadable for sample in samples if sample.content is None]
    return Batch(images, targets, indices, unreadable, samples[0].step_images)


class _Sampler:
    """A batch sampler that yields the keys of the current epoch."""

    keys: Iterator[list[_Key]]

    def __iter__(self) -> Iterator[list[_Key]]:
        return self.keys


class _SampleDataset(Dataset[Sample]):
    def __init__(self, images: Any, load: Load, seed: int) -> None:
        self._images, self._load, self._seed = images, load, seed

    def __getitems__(self, keys: list[_Key]) -> list[Sample]:
        """Load images, without a change of the global generators, which a process without workers uses as well."""
        python, numpy = random.getstate(), np.random.get_state()
        try:
            with torch.random.fork_rng([]):
                return [self._sample(key) for key in keys]
        finally:
            random.setstate(python)
            np.random.set_state(numpy)

    def _sample(self, key: _Key) -> Sample:
        seeds = derive_seeds(self._seed, key.epoch, key.image_index)
        random.seed(seeds[0])
        np.random.seed(np.array(seeds, dtype=np.uint64).view(np.uint32))
        torch.default_generator.manual_seed(seeds[1])  # torch.manual_seed would seed the GPUs as well
        content, unreadable = None, ""
        try:
            content = self._load(self._images, key.image_index)
        except UnreadableImage as error:
            unreadable = f"{self._images.name(key.image_index)}: {error.reason}"
        return Sample(content, key.image_index, unreadable, key.step_images)


def _init_worker(worker: int) -> None:
    """Ignore signals to the process group, because the training process first saves a checkpoint."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    # PyTorch's own watch hangs at exit if a thread waits to send batches that nobody reads, as of many images
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    # A thread sends the batches; by default it drops those that fail, for which the training process would wait
    # forever. concurrent.futures overrides this hook of Queue, too, which type stubs lack.
    multiprocessing.queues.Queue._on_queue_feeder_error = staticmethod(_exit_worker)  # type: ignore[attr-defined]


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _exit_worker(error: Exception, batch: object) -> None:
    echo(f"a data loading worker cannot send a batch: {one_line(error)}", file=sys.stderr)
    os._exit(1)
