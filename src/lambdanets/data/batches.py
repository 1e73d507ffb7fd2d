"""A DataLoader whose order and augmentation depend on the seed alone, and which resumes within an epoch."""

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
from lambdanets.signals import exit_with_parent

_KILL_AFTER = 3.0  # seconds that workers have to exit


class NamedImages(Protocol):
    """A sized set of images with a name for each index."""

    def __len__(self) -> int:
        """The number of images."""

    def name(self, index: int) -> str:
        """The name of an image in messages."""


class Sample(NamedTuple):
    """A loaded image; where it cannot be read, content is None and `unreadable` is "name: reason".

    image_index: in its set. step_images: images in the whole step, over all ranks and micro-batches.
    """

    content: Any
    image_index: int
    unreadable: str
    step_images: int


class _Key(NamedTuple):
    pseudo: bool
    epoch: int
    image_index: int
    step_images: int


BatchT = TypeVar("BatchT")
# (images, index) -> the content of a sample; raises UnreadableImage
Load = Callable[[Any, int], Any]


class Batches(Generic[BatchT]):
    """A DataLoader over a set of images that resumes in the middle of an epoch.

    `iter` starts after the last batch served and stops at the end of that epoch: an epoch that was left early, or
    resumed from `state_dict`, is finished first. Training epochs are shuffled by seed and epoch (`order.py`).
    Validation (`training=False`) is in order of the indices, from the start each time. The generators that `load` may
    use (Python's, NumPy's and torch's on the CPU) are seeded by seed, epoch and index, so neither the number of workers
    nor a resume changes a pixel.

    A training step has batch_size images, whatever the batch_slice: each rank takes every world_size-th of them and
    yields them in accumulation_steps micro-batches. The last step of an epoch may be smaller; it is dropped where a
    micro-batch would have fewer than min_micro_batch images. Validation yields every world_size-th image of the set, in
    micro-batches.

    load: (images, index) -> the content of a sample; collate: samples -> a batch. pseudo_images: a second set, of which
    each training step has pseudo_batch_size images more; it has its own epochs.

    Workers persist between epochs: use the batches in a `with` block, or call `close`. Workers exit with their parent,
    however it ends.

    Raises InputError for an empty set, for fewer than min_micro_batch training images per micro-batch, for fewer
    pseudo_images than ranks, and for arguments out of range.
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
        pseudo_images: NamedImages | None = None,
        pseudo_batch_size: int = 0,
        min_micro_batch: int = 1,
    ) -> None:
        for name, value, minimum in (("batch_size", batch_size, 1), ("seed", seed, 0), ("workers", workers, 0)):
            if value < minimum:
                raise InputError(f"{name} must be at least {minimum}, got {value}")
        self._slice = batch_slice or BatchSlice()
        pseudo_images = pseudo_images if training and pseudo_batch_size else None
        self._pseudo_batch_size = pseudo_batch_size if pseudo_images is not None else 0
        min_images = min_batch_size(self._slice, self._pseudo_batch_size, min_micro_batch) if training else 1
        if len(images) < min_images:
            split = "training" if training else "validation"
            raise InputError(f"{split} images must be at least {min_images}, got {len(images)}")
        if pseudo_images is not None and len(pseudo_images) < self._slice.world_size:
            at_least = f"at least {self._slice.world_size}, one per rank"
            raise InputError(f"pseudo-labeled images must be {at_least}, got {len(pseudo_images)}")
        if training and batch_size < min_images:
            raise InputError(
                f"images of a step must be at least {min_micro_batch} per micro-batch ({self._slice.world_size} ranks, "
                f"{self._slice.accumulation_steps} accumulation steps), got {batch_size + self._pseudo_batch_size}; "
                "raise batch_size"
            )
        self._images = images
        self._batch_size = batch_size
        self._seed = seed
        self._training = training
        self._order = Order(images, seed, self._slice)
        self._pseudo_order = Order(pseudo_images, seed + 1, self._slice) if pseudo_images is not None else None
        self._served = 0  # training batches
        self._sampler = _KeySampler()
        self.steps_per_epoch = steps_per_epoch(len(images), batch_size, min_images)
        self._loader = DataLoader(
            _SampleDataset((images, pseudo_images), load, seed),
            batch_sampler=self._sampler,
            num_workers=workers,
            persistent_workers=workers > 0,  # a key has its epoch, so workers hold no state
            collate_fn=collate,
            worker_init_fn=_init_worker,
            pin_memory=torch.cuda.is_available(),
            generator=torch.Generator(),  # else each epoch would draw from the caller's generator
        )

    @property
    def accumulation_steps(self) -> int:
        """Micro-batches per training step on this rank."""
        return self._slice.accumulation_steps

    def __len__(self) -> int:
        """The number of batches of an epoch on this rank."""
        if self._training:
            return self.steps_per_epoch * self.accumulation_steps
        return -(-len(self._validation_indices()) // self._micro_batch())

    def __iter__(self) -> Iterator[BatchT]:
        self._sampler.length = len(self)
        if self._training:
            epoch, done = divmod(self._served, len(self))
            self._sampler.batches = self._training_keys(epoch, done)
        else:
            self._sampler.batches = self._validation_keys()
        try:
            for batch in self._loader:
                if self._training:
                    self._served += 1  # before yield, so that a checkpoint written after the batch's step counts it
                yield batch
        except InputError as error:
            raise InputError(_without_traceback(error)) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Shut down the workers; kill any that has not exited after 3 seconds.

        Workers ignore SIGINT, SIGTERM and SIGHUP (`_init_worker`).
        """
        running: Any = self._loader._iterator
        if running is None:
            return
        self._loader._iterator = None
        # PyTorch would report a killed worker whose PID it still has as an error
        _remove_worker_pids(id(running))
        running._worker_pids_set = False
        kill = threading.Timer(_KILL_AFTER, lambda: [worker.kill() for worker in running._workers])
        kill.start()
        try:
            running._shutdown_workers()
        finally:
            kill.cancel()

    def state_dict(self) -> dict[str, int]:
        """The training steps served since the start of training (0 for validation), and the steps per epoch."""
        return {"steps": self._served // self.accumulation_steps, "steps_per_epoch": self.steps_per_epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Resume after the steps in `state`, which must come from the same set, batch size and seed.

        The batch slice may differ. Raises InputError where that changes the steps per epoch.
        """
        if state["steps_per_epoch"] != self.steps_per_epoch:
            raise InputError(
                f"steps per epoch must be {state['steps_per_epoch']}, as before, got {self.steps_per_epoch} "
                f"with {self._slice.world_size} ranks and {self.accumulation_steps} accumulation steps; use fewer"
            )
        self._served = state["steps"] * self.accumulation_steps

    def _training_keys(self, epoch: int, done: int) -> Iterator[list[_Key]]:
        """The keys of this rank's micro-batches in an epoch, without the first `done` micro-batches."""
        accumulation_steps = self.accumulation_steps
        for step in range(done // accumulation_steps, self.steps_per_epoch):
            start = step * self._batch_size
            size = min(self._batch_size, len(self._images) - start)
            total = size + self._pseudo_batch_size
            indices = self._order.epoch_indices(epoch, start, size).tolist()
            keys = [_Key(False, epoch, index, total) for index in indices]
            if self._pseudo_order is not None:
                pseudo_start = (epoch * self.steps_per_epoch + step) * self._pseudo_batch_size
                pseudo = self._pseudo_order.consecutive_indices(pseudo_start, self._pseudo_batch_size)
                keys += [_Key(True, pseudo_epoch, index, total) for pseudo_epoch, index in pseudo]
            # strided, so that each micro-batch has images of both sets
            yield from (keys[first::accumulation_steps] for first in range(accumulation_steps))

    def _validation_keys(self) -> Iterator[list[_Key]]:
        indices, size = self._validation_indices(), self._micro_batch()
        for start in range(0, len(indices), size):
            yield [_Key(False, 0, index, 0) for index in indices[start : start + size]]

    def _validation_indices(self) -> Sequence[int]:
        return range(self._slice.rank, len(self._images), self._slice.world_size)

    def _micro_batch(self) -> int:
        return max(1, self._batch_size // (self._slice.world_size * self.accumulation_steps))


def min_batch_size(batch_slice: BatchSlice, pseudo_batch_size: int, min_micro_batch: int) -> int:
    """The smallest batch_size with which each micro-batch has min_micro_batch images, pseudo-labeled ones included."""
    ranks = batch_slice.world_size
    return max(1, ranks * (min_micro_batch * batch_slice.accumulation_steps - pseudo_batch_size // ranks))


def steps_per_epoch(images: int, batch_size: int, min_images: int) -> int:
    """Steps per epoch; the last may be smaller, and is dropped below min_images."""
    full, rest = divmod(images, batch_size)
    return full + (rest >= min_images)


class _KeySampler:
    """A batch sampler that yields the keys of the current epoch."""

    batches: Iterator[list[_Key]]
    length: int

    def __iter__(self) -> Iterator[list[_Key]]:
        return self.batches

    def __len__(self) -> int:
        return self.length


class _SampleDataset(Dataset[Sample]):
    def __init__(self, sets: tuple[NamedImages, NamedImages | None], load: Load, seed: int) -> None:
        self._sets = sets
        self._load = load
        self._seed = seed

    def __getitems__(self, keys: list[_Key]) -> list[Sample]:
        with _preserved_rng_states():
            return [self._sample(key) for key in keys]

    def _sample(self, key: _Key) -> Sample:
        images = self._sets[key.pseudo]
        assert images is not None
        _seed_generators(derive_seeds(self._seed + key.pseudo, key.epoch, key.image_index))
        try:
            return Sample(self._load(images, key.image_index), key.image_index, "", key.step_images)
        except UnreadableImage as error:
            return Sample(None, key.image_index, f"{images.name(key.image_index)}: {error.reason}", key.step_images)


def _init_worker(worker: int) -> None:
    """Ignore signals to the process group: the training process shuts its workers down after a checkpoint."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    exit_with_parent()  # PyTorch checks that between batches only, not while a worker hangs in an image


def _without_traceback(error: InputError) -> str:
    """The message of an error, without the traceback that PyTorch prepends to an error of a worker."""
    return str(error).strip().rpartition(f"{InputError.__module__}.InputError: ")[2]


def _seed_generators(seeds: list[int]) -> None:
    random.seed(seeds[0])
    np.random.seed(np.array(seeds, dtype=np.uint64).view(np.uint32))
    torch.default_generator.manual_seed(seeds[1])  # torch.manual_seed would seed the GPUs as well


@contextmanager
def _preserved_rng_states() -> Iterator[None]:
    """Restore the states of the three global generators after the block."""
    states: tuple[Any, Any, Tensor] = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
