"""The order that images are trained in: drawn from a seed and an epoch, and from nothing else."""

from collections.abc import Sequence, Sized

import numpy as np
import torch

WINDOW = 8  # shards open at a time: 80,000 images to shuffle among in shards of the usual size


def mixed(seed: int, *place: int) -> list[int]:
    """Two 64-bit numbers, unrelated for any two seeds or places (a sum of them would repeat along diagonals)."""
    return np.random.SeedSequence(seed, spawn_key=place).generate_state(2, np.uint64).tolist()


def order_of(images: Sized, seed: int, epoch: int) -> np.ndarray:
    """The numbers of a set's images in an order of the epoch's own, int64 (n,); in windows where it has `groups`."""
    groups = getattr(images, "groups", None)
    return permuted(len(images), seed, epoch) if groups is None else permuted_in_windows(groups, seed, epoch)


def permuted(count: int, seed: int, epoch: int) -> np.ndarray:
    """The numbers below `count` in an order of the epoch's own, int64 (count,)."""
    return torch.randperm(count, generator=_generator(seed, epoch)).numpy()


def permuted_in_windows(groups: Sequence[int], seed: int, epoch: int) -> np.ndarray:
    """The numbers below sum(groups) in an order of the epoch's own that stays within few groups for long, int64.

    `groups` are the counts of images in consecutive shards. The shards are permuted, taken WINDOW at a time, and the
    images of a window shuffled together, so that a reader has WINDOW shards open and not all of them.
    """
    generator = _generator(seed, epoch)
    ends = np.cumsum(groups, dtype=np.int64)
    order = np.empty(ends[-1] if len(ends) else 0, dtype=np.int64)
    shards = torch.randperm(len(ends), generator=generator).numpy()
    done = 0
    for first in range(0, len(shards), WINDOW):
        window = [np.arange(ends[shard] - groups[shard], ends[shard]) for shard in shards[first : first + WINDOW]]
        images = np.concatenate(window)
        shuffled = torch.randperm(len(images), generator=generator).numpy()
        order[done : done + len(images)] = images[shuffled]
        done += len(images)
    return order


def _generator(seed: int, epoch: int) -> torch.Generator:
    return torch.Generator().manual_seed(mixed(seed, epoch)[0])
