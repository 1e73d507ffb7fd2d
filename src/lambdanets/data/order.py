"""The order that images are trained in: drawn from a seed and an epoch, and from nothing else."""

from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass

import numpy as np
import torch

WINDOW = 8  # shards open at a time: 80,000 images to shuffle among in shards of the usual size


@dataclass(frozen=True)
class BatchSlice:
    """The part of each batch that a rank takes, and in how many micro-batches it accumulates gradients over it."""

    rank: int = 0
    world_size: int = 1
    accumulation_steps: int = 1

    def count(self, positions: int) -> int:
        """How many of that many positions are this rank's: every world_size-th."""
        return len(range(self.rank, positions, self.world_size))


class Order:
    """The images that a process trains on, by position in an epoch, in an order drawn from the seed and the epoch.

    Of images in files, each process takes every processes-th of one order. Of images in shards, which have `groups`,
    it takes as many from shards of its own: then no process reads the shards of another, but those at its two ends.
    """

    def __init__(self, images: Sized, seed: int, batch_slice: BatchSlice) -> None:
        self._count = len(images)
        self._groups: Sequence[int] | None = getattr(images, "groups", None)
        self._seed = seed
        self._slice = batch_slice
        self._drawn: tuple[int, np.ndarray] | None = None

    def of_epoch(self, epoch: int, first: int, size: int) -> np.ndarray:
        """This process's image numbers among so many positions of an epoch, from a first one on."""
        own = np.arange(self._slice.count(first), self._slice.count(first + size))
        order = self._draw(epoch)
        return order[own if self._groups is not None else self._slice.rank + own * self._slice.world_size]

    def of_epochs(self, first: int, size: int) -> Iterator[tuple[int, int]]:
        """This process's epochs and image numbers among so many positions of epochs that follow each other."""
        whole = self._slice.count(self._count) if self._groups is not None else self._count
        for own in range(self._slice.count(first), self._slice.count(first + size)):
            place = own if self._groups is not None else self._slice.rank + own * self._slice.world_size
            epoch, position = divmod(place, whole)
            yield epoch, int(self._draw(epoch)[position])

    def _draw(self, epoch: int) -> np.ndarray:
        if self._drawn is None or self._drawn[0] != epoch:
            if self._groups is None:
                order = permuted(self._count, self._seed, epoch)
            else:
                others = (BatchSlice(other, self._slice.world_size) for other in range(self._slice.rank))
                before = sum(other.count(self._count) for other in others)
                stretch = range(before, before + self._slice.count(self._count))
                order = permuted_in_windows(self._groups, self._seed, epoch, stretch)
            self._drawn = epoch, order
        return self._drawn[1]


def mixed(seed: int, *place: int) -> list[int]:
    """Two 64-bit numbers, unrelated for any two seeds or places (a sum of them would repeat along diagonals)."""
    return np.random.SeedSequence(seed, spawn_key=place).generate_state(2, np.uint64).tolist()


def permuted(count: int, seed: int, epoch: int) -> np.ndarray:
    """The numbers below `count` in an order of the epoch's own, int64 (count,)."""
    return torch.randperm(count, generator=_generator(seed, epoch)).numpy()


def permuted_in_windows(groups: Sequence[int], seed: int, epoch: int, stretch: range | None = None) -> np.ndarray:
    """The numbers below sum(groups) in an order of the epoch's own that stays within few groups for long, int64.

    `groups` are the counts of images in consecutive shards. The shards are permuted, taken WINDOW at a time, and the
    images of a window shuffled together, so that a reader has WINDOW shards open and not all of them. `stretch` are the
    positions wanted of all images in the order of the permuted shards; they are shuffled among themselves.
    """
    generator = _generator(seed, epoch)
    sizes = np.asarray(groups, dtype=np.int64)
    shards = torch.randperm(len(sizes), generator=generator).numpy()
    ends = np.cumsum(sizes)  # of numbers, shard by shard
    places = np.cumsum(sizes[shards])  # of positions, in the order of the permuted shards
    stretch = range(int(places[-1]) if len(places) else 0) if stretch is None else stretch
    order = np.empty(len(stretch), dtype=np.int64)
    begins = places - sizes[shards]
    touched = np.flatnonzero((places > stretch.start) & (begins < stretch.stop))
    done = 0
    for first in range(0, len(touched), WINDOW):
        pieces = []
        for i in touched[first : first + WINDOW]:
            shard = shards[i]
            inside = np.arange(max(stretch.start, begins[i]), min(stretch.stop, places[i])) - begins[i]
            pieces.append(ends[shard] - sizes[shard] + inside)
        images = np.concatenate(pieces)
        shuffled = torch.randperm(len(images), generator=generator).numpy()
        order[done : done + len(images)] = images[shuffled]
        done += len(images)
    return order


def _generator(seed: int, epoch: int) -> torch.Generator:
    return torch.Generator().manual_seed(mixed(seed, epoch)[0])
