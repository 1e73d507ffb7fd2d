"""The order of training images, which depends only on the seed and the epoch."""

from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass

import numpy as np
import torch

WINDOW = 8  # number of shards that are open at a time and shuffled together, for example 8 x 10,000 images


@dataclass(frozen=True)
class BatchSlice:
    """The images of each global batch that a rank takes, and the number of micro-batches in which it processes them."""

    rank: int = 0
    world_size: int = 1
    accumulation_steps: int = 1

    def count(self, stop: int) -> int:
        """Return how many of the positions in range(stop) this rank takes, which are rank, rank + world_size, ..."""
        return len(range(self.rank, stop, self.world_size))


class Order:
    """The shuffled image indices of a rank, by position in an epoch.

    If the images are in files, each rank takes every world_size-th index of one permutation. If they are in shards of
    `images.shard_sizes` images, each rank takes a contiguous range of the permuted shards, so two ranks read the same
    shard only at the boundary of their ranges.
    """

    def __init__(self, images: Sized, seed: int, batch_slice: BatchSlice) -> None:
        self._num_images = len(images)
        self._shard_sizes: Sequence[int] | None = getattr(images, "shard_sizes", None)
        self._seed = seed
        self._slice = batch_slice
        self._cached: tuple[int, np.ndarray] | None = None

    def epoch_indices(self, epoch: int, start: int, size: int) -> np.ndarray:
        """Return this rank's image indices at the positions [start, start + size) of an epoch, int64."""
        local = np.arange(self._slice.count(start), self._slice.count(start + size))
        order = self._epoch_order(epoch)
        return order[local if self._shard_sizes is not None else self._slice.rank + local * self._slice.world_size]

    def consecutive_indices(self, start: int, size: int) -> Iterator[tuple[int, int]]:
        """Yield this rank's (epoch, image index) at the positions [start, start + size), counted over all epochs."""
        epoch_size = self._slice.count(self._num_images) if self._shard_sizes is not None else self._num_images
        for local in range(self._slice.count(start), self._slice.count(start + size)):
            position = local if self._shard_sizes is not None else self._slice.rank + local * self._slice.world_size
            epoch, position = divmod(position, epoch_size)
            yield epoch, int(self._epoch_order(epoch)[position])

    def _epoch_order(self, epoch: int) -> np.ndarray:
        if self._cached is None or self._cached[0] != epoch:
            if self._shard_sizes is None:
                order = permutation(self._num_images, self._seed, epoch)
            else:
                lower_ranks = (BatchSlice(rank, self._slice.world_size) for rank in range(self._slice.rank))
                start = sum(lower.count(self._num_images) for lower in lower_ranks)
                positions = range(start, start + self._slice.count(self._num_images))
                order = windowed_permutation(self._shard_sizes, self._seed, epoch, positions)
            self._cached = epoch, order
        return self._cached[1]


def derive_seeds(seed: int, *spawn_key: int) -> list[int]:
    """Derive two 64-bit seeds from a seed and a key such as (epoch, index). Adding the key would cause collisions."""
    return np.random.SeedSequence(seed, spawn_key=spawn_key).generate_state(2, np.uint64).tolist()


def permutation(count: int, seed: int, epoch: int) -> np.ndarray:
    """Return the random permutation of range(count) for an epoch, int64 (count,)."""
    return torch.randperm(count, generator=_generator(seed, epoch)).numpy()


def windowed_permutation(
    shard_sizes: Sequence[int], seed: int, epoch: int, positions: range | None = None
) -> np.ndarray:
    """Return a random permutation of all image indices, int64, that reads only WINDOW shards at a time.

    shard_sizes: number of images in each shard.
    positions: return only the images at these positions in the sequence of permuted shards, which are then shuffled
        independently of the others; all by default.

    The shards are permuted, and the images of each WINDOW consecutive shards are shuffled together.
    """
    generator = _generator(seed, epoch)
    sizes = np.asarray(shard_sizes, dtype=np.int64)
    shards = torch.randperm(len(sizes), generator=generator).numpy()
    first_indices = np.cumsum(sizes) - sizes  # of each shard
    stops = np.cumsum(sizes[shards])  # end positions of the permuted shards
    starts = stops - sizes[shards]
    positions = range(int(stops[-1]) if len(stops) else 0) if positions is None else positions
    order = np.empty(len(positions), dtype=np.int64)
    overlapping = np.flatnonzero((stops > positions.start) & (starts < positions.stop))
    done = 0
    for window in range(0, len(overlapping), WINDOW):
        image_ranges = []
        for i in overlapping[window : window + WINDOW]:
            offsets = np.arange(max(positions.start, starts[i]), min(positions.stop, stops[i])) - starts[i]
            image_ranges.append(first_indices[shards[i]] + offsets)
        images = np.concatenate(image_ranges)
        shuffled = torch.randperm(len(images), generator=generator).numpy()
        order[done : done + len(images)] = images[shuffled]
        done += len(images)
    return order


def _generator(seed: int, epoch: int) -> torch.Generator:
    return torch.Generator().manual_seed(derive_seeds(seed, epoch)[0])
