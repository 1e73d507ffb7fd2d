"""A DataLoader whose order and augmentation depend only on the seed, and which can resume within an epoch."""

import multiprocessing.queues
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils.signal_handling import _remove_worker_pids

from lambdanets.data.images import UnreadableImage
from lambdanets.data.order import BatchSlice, Key, Order, derive_seeds
from lambdanets.errors import InputError, one_line
from lambdanets.signals import SIGNALS
from lambdanets.terminal import echo, plural

_KILL_AFTER = 3.0  # seconds after which workers that have not exited are killed


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


Transform = Callable[[Any, Any], tuple[Any, Any]]
Collate = Callable[[list[Any], list[Any]], tuple[Any, Any]]


def keep_lists(images: list[Any], targets: list[Any]) -> tuple[list[Any], list[Any]]:
    """Collate images of different sizes."""
    return images, targets


class Batches(AbstractContextManager["Batches"]):
    """A DataLoader over a set of images that can resume in the middle of an epoch.

    images: a set, with `len(images)`; `images.load(index)` returns an image and its target, or raises UnreadableImage.
    transform: transform(image, target) returns both as `collate` takes them.
    collate: collate(images, targets) makes those of a batch, which may be none; by default lists.
    batch_size: images per training step, over all ranks and micro-batches.
    batch_slice: the rank, world size, number of accumulation steps and smallest micro-batch.
    order: the images of each training step; by default `Order`.

    `iter` starts after the last batch that was yielded and stops at the end of that epoch. An epoch that was left
    early, or resumed with `load_state_dict`, is therefore finished first. Training epochs are shuffled by seed and
    epoch. Validation (`training=False`) is not shuffled and always starts at the first image.
    The random generators that `transform` may use (of Python, NumPy, and torch on the CPU) are seeded by seed, epoch
    and index, so the images depend neither on the number of workers nor on resuming.

    In training, each rank takes every world_size-th image of a step and yields them in accumulation_steps
    micro-batches. The last step of an epoch may be smaller; it is dropped if a micro-batch would have too few images.
    In validation, each rank yields every world_size-th image of the set.

    Workers persist between epochs: use the batches in a `with` block. They also exit when their parent process is
    killed.

    Raises InputError for an empty set, and for fewer training images than a step needs.
    """

    def __init__(
        self,
        images: Any,
        transform: Transform,
        collate: Collate = keep_lists,
        *,
        batch_size: int,
        seed: int = 0,
        training: bool = False,
        workers: int = 0,
        batch_slice: BatchSlice | None = None,
        order: Order | None = None,
    ) -> None:
        batch_slice = batch_slice or BatchSlice()
        ranks, parts = batch_slice.world_size, batch_slice.accumulation_steps
        if not training:
            size = max(1, batch_size // (ranks * parts)) * ranks
            order = Order(images, size, None, replace(batch_slice, accumulation_steps=1))
        elif order is None:
            order = Order(images, batch_size, seed, batch_slice, ranks * parts * batch_slice.min_micro_batch)
        self._order, self._training, self.collate = order, training, collate
        self.batch_slice, self.steps_per_epoch = order.batch_slice, order.steps_per_epoch
        self._dataset = _BatchDataset(images, transform, collate, seed)
        if workers and sys.platform == "linux":  # where each tensor in a batch of a worker is an open file
            import resource

            hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            with suppress(ValueError, OSError):  # the system may have lowered its own limit since
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
        self._loader = DataLoader(
            self._dataset,
            batch_size=None,  # an item of the dataset is a batch
            sampler=order,
            num_workers=workers,
            persistent_workers=workers > 0,  # workers have no state, because keys include the epoch
            collate_fn=Batch._make,  # by default PyTorch would convert tuples in it
            worker_init_fn=_init_worker,
            pin_memory=torch.cuda.is_available(),
            generator=torch.Generator(),  # otherwise each epoch would draw from the global generator
        )

    def load(self, index: int) -> tuple[Any, Any]:
        """Load an image and its target as in the first epoch, without changing the state. Raises UnreadableImage."""
        with _kept_generators():
            return self._dataset.load(0, index)

    def __len__(self) -> int:
        """The number of batches of an epoch on this rank."""
        return len(self._order)

    def __iter__(self) -> Iterator[Batch]:
        try:
            for batch in self._loader:
                # before yield, so that a checkpoint written after the batch's step counts it
                self._order.num_done += self._training
                yield batch
        except InputError as error:  # of a worker: PyTorch prepends the traceback to the message
            raise InputError(str(error).strip().rpartition(f"{InputError.__module__}.InputError: ")[2]) from error
        except (ConnectionError, EOFError) as error:  # while a killed worker sends a batch
            raise RuntimeError("DataLoader worker exited unexpectedly") from error

    def __exit__(self, *_: object) -> None:
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
        """Return the number of training steps yielded so far, and the steps per epoch."""
        steps = self._order.num_done // self.batch_slice.accumulation_steps
        return {"steps": steps, "steps_per_epoch": self.steps_per_epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Resume after the steps in `state`, which must be from the same set, batch size and seed.

        The batch slice may differ. A last step that was dropped still is. Raises InputError if one is dropped only now.
        """
        ranks, parts = self.batch_slice.world_size, self.batch_slice.accumulation_steps
        if state["steps_per_epoch"] > self.steps_per_epoch:
            raise InputError(
                f"steps per epoch must be {state['steps_per_epoch']}, as before, got {self.steps_per_epoch} "
                f"with {plural(ranks, 'rank')} and {plural(parts, 'accumulation step')}; use fewer"
            )
        self.steps_per_epoch = self._order.steps_per_epoch = state["steps_per_epoch"]
        self._order.num_done = state["steps"] * parts


class _BatchDataset(Dataset[Batch]):
    def __init__(self, images: Any, transform: Transform, collate: Collate, seed: int) -> None:
        self._images, self._transform, self._collate, self._seed = images, transform, collate, seed

    def __getitem__(self, key: Key) -> Batch:
        loaded: list[tuple[Any, Any]] = []
        indices: list[int] = []
        unreadable: list[str] = []
        with _kept_generators():
            for epoch, index in key[0]:
                try:
                    loaded.append(self.load(epoch, index))
                    indices.append(index)
                except UnreadableImage as error:
                    unreadable.append(f"{error.path}: {error.reason}")
        collated = self._collate([image for image, _ in loaded], [target for _, target in loaded])
        return Batch(*collated, torch.tensor(indices, dtype=torch.int64), unreadable, key[1])

    def load(self, epoch: int, index: int) -> tuple[Any, Any]:
        """Load an image after seeding the global generators for it. Raises UnreadableImage."""
        seeds = derive_seeds(self._seed, epoch, index)
        random.seed(seeds[0])
        np.random.seed(np.array(seeds, dtype=np.uint64).view(np.uint32))
        torch.default_generator.manual_seed(seeds[1])  # torch.manual_seed would seed the GPUs as well
        return self._transform(*self._images.load(index))


@contextmanager
def _kept_generators() -> Iterator[None]:
    """Restore the global generators after the block, since a process without workers uses them as well."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng([]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


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
