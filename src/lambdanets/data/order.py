"""The order of the images, which depends only on the seed and the epoch, and its division among ranks."""

from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass

import numpy as np
import torch

from lambdanets.errors import InputError
from lambdanets.terminal import plural

WINDOW = 8  # number of shards that are open at a time and shuffled together, for example 8 x 10,000 images


@dataclass(frozen=True)
class BatchSlice:
    """The images of each global batch that a rank takes, and the number of micro-batches in which it processes them.

    min_micro_batch: minimum number of training images per micro-batch.
    """

    rank: int = 0
    world_size: int = 1
    accumulation_steps: int = 1
    min_micro_batch: int = 1

    def count(self, stop: int) -> int:
        """Return how many of the positions in range(stop) this rank takes, which are rank, rank + world_size, ..."""
        return len(range(self.rank, stop, self.world_size))


Key = tuple[list[tuple[int, int]], int]  # (epoch, index) of the images of a batch, and the number of the whole step


class Order:
    """The batches of a rank in each epoch, as keys; a sampler of a DataLoader, which can resume within an epoch.

    seed: shuffles the images of each epoch. None, for validation: they are in order.
    min_images: minimum number of images per step. The last step of an epoch may be smaller than batch_size; it is
        dropped if it has fewer.

    If the images are in files, each rank takes every world_size-th index of one permutation. If they are in shards of
    `images.shard_sizes` images, each rank takes a contiguous range of the permuted shards, so two ranks read the same
    shard only at the boundary of their ranges.

    `num_done` is the number of batches of all epochs that are done. Iterating yields those that are left of the epoch.
    Raises InputError if batch_size or the number of images is less than min_images.
    """

    def __init__(
        self, images: Sized, batch_size: int, seed: int | None, batch_slice: BatchSlice, min_images: int = 1
    ) -> None:
        if len(images) < min_images:
            kind = "validation" if seed is None else "training"
            raise InputError(f"number of {kind} images must be at least {min_images}, got {len(images)}")
        if batch_size < min_images:
            raise InputError(
                f"batch_size must be at least {min_images} for {plural(batch_slice.world_size, 'rank')} and "
                f"{plural(batch_slice.accumulation_steps, 'accumulation step')}, got {batch_size}"
            )
        self.num_images, self.batch_size, self.batch_slice = len(images), batch_size, batch_slice
        full_steps, remainder = divmod(len(images), batch_size)
        self.steps_per_epoch = full_steps + (remainder >= min_images)
        self.num_done = 0
        self._shard_sizes: Sequence[int] | None = getattr(images, "shard_sizes", None)
        self._seed = seed
        self._cached: tuple[int, np.ndarray] | None = None

    def __len__(self) -> int:
        """The number of batches of an epoch on this rank."""
        return self.steps_per_epoch * self.batch_slice.accumulation_steps

    def __iter__(self) -> Iterator[Key]:
        epoch, num_done = divmod(self.num_done, len(self))
        for step in range(num_done // self.batch_slice.accumulation_steps, self.steps_per_epoch):
            images, step_images = self.step(epoch, step)
            # strided, so that each micro-batch has images of both sets of an order with two sets
            for first in range(self.batch_slice.accumulation_steps):
                yield images[first :: self.batch_slice.accumulation_steps], step_images

    def step(self, epoch: int, step: int) -> Key:
        """Return the (epoch, image index) of this rank's images in a step, and the number of images of all ranks."""
        start = step * self.batch_size
        count = min(self.batch_size, self.num_images - start)
        local = slice(self.batch_slice.count(start), self.batch_slice.count(start + count))
        return [(epoch, index) for index in self.epoch(epoch)[local].tolist()], count

    def epoch(self, epoch: int) -> np.ndarray:
        """Return the indices of this rank's images in an epoch, int64."""
        if self._cached is None or self._cached[0] != epoch:
            rank, world_size = self.batch_slice.rank, self.batch_slice.world_size
            if self._seed is None:
                order = np.arange(rank, self.num_images, world_size)
            elif self._shard_sizes is None:
                order = permutation(self.num_images, self._seed, epoch)[rank::world_size]
            else:
                start = sum(BatchSlice(lower, world_size).count(self.num_images) for lower in range(rank))
                positions = range(start, start + self.batch_slice.count(self.num_images))
                order = windowed_permutation(self._shard_sizes, self._seed, epoch, positions)
            self._cached = epoch, order
        return self._cached[1]


def derive_seeds(seed: int, *spawn_key: int) -> list[int]:
    """Derive two 64-bit seeds from a seed and a key such as (epoch, index). Adding the key would cause collisions."""
    return np.random.SeedSequence(seed, spawn_key=spawn_key).generate_state(2, np.uint64).tolist()


def permutation(count: int, seed: int, epoch: int) -> np.ndarray:
    """Return the random permutation of range(count) for an epoch, int64 (count,)."""
    return torch.randperm(count, generator=_generator(seed, epoch)).numpy()


def windowed_permutation(shard_sizes: Sequence[int], seed: int, epoch: int, positions: range) -> np.ndarray:
    """Return random image indices, int64, that are read from only WINDOW shards at a time.

    shard_sizes: number of images in each shard.
    positions: of the images in the sequence of permuted shards. The images of each WINDOW consecutive shards at these
        positions are shuffled together, independently of all others.
    """
    generator = _generator(seed, epoch)
    sizes = np.asarray(shard_sizes, dtype=np.int64)
    shards = torch.randperm(len(sizes), generator=generator).numpy()
    first_indices = np.cumsum(sizes) - sizes  # of each shard
    stops = np.cumsum(sizes[shards])  # end positions of the permuted shards
    ranges = [
        np.arange(max(positions.start, start), min(positions.stop, stop)) + (first_indices[shard] - start)
        for shard, start, stop in zip(shards, stops - sizes[shards], stops, strict=True)
        if start < positions.stop and stop > positions.start
    ]
    windows = [np.concatenate(ranges[first : first + WINDOW]) for first in range(0, len(ranges), WINDOW)]
    return np.concatenate([window[torch.randperm(len(window), generator=generator).numpy()] for window in windows])


def _generator(seed: int, epoch: int) -> torch.Generator:
    return torch.Generator().manual_seed(derive_seeds(seed, epoch)[0])
