"""Batches of a set of images in an order, and with random numbers, that depend on the seed alone."""

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
from lambdanets.data.order import BatchSlice, Order, mixed
from lambdanets.errors import InputError
from lambdanets.signals import end_with_parent

_PATIENCE = 3.0  # seconds that workers have to end


class NamedImages(Protocol):
    """Images that have numbers and names."""

    def __len__(self) -> int:
        """How many there are."""

    def name(self, index: int) -> str:
        """What a person would call one."""


class Sample(NamedTuple):
    """What became of an image: content None, and a sentence, where it could not be read.

    number: in its set. step_images: how many images the whole step was to have, over all processes and parts.
    """

    content: Any
    number: int
    unreadable: str
    step_images: int


class _Key(NamedTuple):
    beside: bool
    epoch: int
    number: int
    step_images: int


Made = TypeVar("Made")
# an image of a set, by its number, made ready for the model; raises UnreadableImage
Make = Callable[[Any, int], Any]


class Batches(Generic[Made]):
    """A loader over a set of images that can go on in the middle of an epoch.

    Each call of `iter` runs from the step after the last one handed out to the end of that epoch, so an epoch that
    was left early (or resumed from `state_dict`) is finished first, and the next call begins the next epoch. An epoch
    of training comes in an order drawn from the seed and the epoch (`order.py`); validation (`training=False`) goes in
    plain order, from the start each time. The random numbers that `make` draws (Python's, NumPy's and torch's CPU
    generator) are seeded by seed, epoch and image, so neither the number of workers nor a resumption changes a pixel.

    A step of training has batch_size images, whatever the batch_slice: this rank takes every world_size-th of them, and
    hands them out in parts, a batch each. The last step of an epoch may be smaller; it is left out where a part would
    have fewer images than least_part, and its images come in other epochs. Validation hands out every processes-th
    image of the set, in batches of the size of a part.

    make: an image of a set, by number, made ready; collate: a batch of such samples. beside: another set, of which
    every step of training has beside_size images more; it has epochs of its own.

    Workers stay from one pass to the next, so a user closes the batches, by `with` or `close`. They end with their
    parent, however that ends.

    Raises InputError for an empty set, for a training set with fewer than least_part images for each part, for fewer
    images beside it than processes, and for arguments out of range.
    """

    def __init__(
        self,
        images: NamedImages,
        make: Make,
        collate: Callable[[list[Sample]], Made],
        *,
        batch_size: int,
        seed: int,
        training: bool,
        workers: int,
        batch_slice: BatchSlice | None = None,
        beside: NamedImages | None = None,
        beside_size: int = 0,
        least_part: int = 1,
    ) -> None:
        for name, value, least in (("batch_size", batch_size, 1), ("seed", seed, 0), ("workers", workers, 0)):
            if value < least:
                raise InputError(f"expected {name} of at least {least}, but came {value}")
        self._slice = batch_slice or BatchSlice()
        beside = beside if training and beside_size else None
        self._beside_size = beside_size if beside is not None else 0
        least_images = least_of_step(self._slice, self._beside_size, least_part) if training else 1
        if len(images) < least_images:
            raise InputError(
                f"expected at least {least_images} images to {'train' if training else 'validate'} on, "
                f"but came {len(images)}"
            )
        if beside is not None and len(beside) < self._slice.world_size:
            raise InputError(
                f"expected at least {self._slice.world_size} images beside the labelled ones, one a process, "
                f"but came {len(beside)}"
            )
        if training and batch_size < least_images:
            raise InputError(
                f"expected batch_size of at least {least_part} images for each of {self._slice.world_size} processes "
                f"and {self._slice.accumulation_steps} parts, but came {batch_size + self._beside_size}"
            )
        self._images = images
        self._batch_size = batch_size
        self._seed = seed
        self._training = training
        self._order = Order(images, seed, self._slice)
        self._beside_order = Order(beside, seed + 1, self._slice) if beside is not None else None
        self._served = 0
        self._schedule = _Schedule()
        # of training steps in a whole epoch
        self.steps = steps_in_epoch(len(images), batch_size, least_images)
        self._loader = DataLoader(
            _Samples((images, beside), make, seed),
            batch_sampler=self._schedule,
            num_workers=workers,
            persistent_workers=workers > 0,  # a key carries its epoch, so a worker has no state to go stale
            collate_fn=collate,
            worker_init_fn=_begin_worker,
            pin_memory=torch.cuda.is_available(),
            generator=torch.Generator(),  # else each pass would draw from the caller's generator
        )

    @property
    def parts(self) -> int:
        """Batches that this process hands out a step of training."""
        return self._slice.accumulation_steps

    def __len__(self) -> int:
        """The number of batches that this process hands out in a whole epoch."""
        return self.steps * self.parts if self._training else -(-len(self._own()) // self._part_size())

    def __iter__(self) -> Iterator[Made]:
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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

        The batch slice may be another. Raises InputError where that changes the number of steps in an epoch.
        """
        if state["steps_per_epoch"] != self.steps:
            raise InputError(
                f"expected {state['steps_per_epoch']} steps an epoch, as when the run began, but with "
                f"{self._slice.world_size} processes in {self.parts} parts there are {self.steps}; use fewer of them"
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

    def _own(self) -> Sequence[int]:
        return range(self._slice.rank, len(self._images), self._slice.world_size)

    def _part_size(self) -> int:
        return max(1, self._batch_size // (self._slice.world_size * self.parts))


def least_of_step(batch_slice: BatchSlice, beside_size: int, least_part: int) -> int:
    """How many images a step of training must have of the first set, so that each part has least_part of both sets."""
    ranks = batch_slice.world_size
    return max(1, ranks * (least_part * batch_slice.accumulation_steps - beside_size // ranks))


def steps_in_epoch(images: int, batch_size: int, least_images: int) -> int:
    """Steps of an epoch; the last may be smaller, and is left out below least_images."""
    full, rest = divmod(images, batch_size)
    return full + (rest >= least_images)


class _Schedule:
    """The batches of keys that the next pass of the loader makes."""

    batches: Iterator[list[_Key]]
    length: int

    def __iter__(self) -> Iterator[list[_Key]]:
        return self.batches

    def __len__(self) -> int:
        return self.length


class _Samples(Dataset[Sample]):
    def __init__(self, sets: tuple[NamedImages, NamedImages | None], make: Make, seed: int) -> None:
        self._sets = sets
        self._make = make
        self._seed = seed

    def __getitems__(self, keys: list[_Key]) -> list[Sample]:
        with _own_generators():
            return [self._sample(key) for key in keys]

    def _sample(self, key: _Key) -> Sample:
        images = self._sets[key.beside]
        assert images is not None
        _seed_generators(mixed(self._seed + key.beside, key.epoch, key.number))
        try:
            return Sample(self._make(images, key.number), key.number, "", key.step_images)
        except UnreadableImage as error:
            return Sample(None, key.number, f"{images.name(key.number)}: {error.reason}", key.step_images)


def _begin_worker(worker: int) -> None:
    """A signal to the whole group is for the training process, which ends its workers after a checkpoint."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    end_with_parent()  # also while it hangs in an image: PyTorch looks between batches only


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
