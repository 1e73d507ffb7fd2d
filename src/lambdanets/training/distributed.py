"""Distributed training: rank, world size and collectives.

torchrun sets rank and world size in the environment; without it there is one process.
"""

import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from lambdanets.errors import InputError, RankZeroFailed

T = TypeVar("T")
Item = TypeVar("Item")
_STORE_TIMEOUT = timedelta(minutes=10)
# Ranks wait while rank zero evaluates or writes; a lost rank is noticed by its closed connection.
_COLLECTIVE_TIMEOUT = timedelta(days=1)
# gloo raises a plain RuntimeError for a lost connection, whose message begins with its source file.
_LOST_BY_GLOO = re.compile(r"\[\S*/gloo/\S+:\d+\] ")
_RENDEZVOUS_SECONDS = 300.0  # a rank's timeout for the store


@dataclass(frozen=True)
class World:
    """Rank and world size of this process, over all nodes and on its own node."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1

    @property
    def nodes(self) -> int:
        """Number of nodes, which all have the same number of processes."""
        return self.world_size // self.local_world_size

    @property
    def is_rank_zero(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0


def get_world() -> World:
    """Rank and world size from torchrun's environment variables; a single process without torchrun."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return World()
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    return World(*(int(os.environ[name]) for name in names))


def set_device(world: World) -> None:
    """Select the GPU of this local rank, if there are GPUs. Raises InputError if there are too few."""
    if not torch.cuda.is_available():
        return
    if world.local_world_size > torch.cuda.device_count():
        raise InputError(
            f"processes per node must be at most {torch.cuda.device_count()}, its GPUs, got {world.local_world_size}"
        )
    torch.cuda.set_device(world.local_rank)


@contextmanager
def process_group() -> Iterator[World]:
    """Initialize the process group: gloo for CPU tensors, NCCL for CUDA tensors."""
    world = get_world()
    set_device(world)
    if world.world_size == 1 or dist.is_initialized():
        yield world
        return
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        with report_lost_connection():
            dist.init_process_group(
                backend,
                store=_store_of_rank_zero(world),
                rank=world.rank,
                world_size=world.world_size,
                timeout=_COLLECTIVE_TIMEOUT,
            )
            yield world
    finally:
        if dist.is_initialized():  # Lightning may have destroyed it
            dist.destroy_process_group()


@contextmanager
def report_lost_connection() -> Iterator[None]:
    """Raise InputError if a collective or the store lost the connection to another rank.

    Other errors pass unchanged, such as CUDA's about peer access or NCCL's about a GPU that two ranks use.
    """
    try:
        yield
    except RuntimeError as error:
        lost = isinstance(error, dist.DistNetworkError | dist.DistStoreError)
        lost |= isinstance(error, dist.DistBackendError) and "ncclRemoteError" in str(error)
        lost |= _LOST_BY_GLOO.match(str(error)) is not None
        if not lost:
            raise
        raise InputError(f"connection to another rank was lost: {' '.join(str(error).split())[:200]}") from error


def rank_zero_first(do: Callable[[], T]) -> T:
    """Run do() on rank zero first, then on the others, so that an error of rank zero is reported once."""
    if not dist.is_initialized():
        return do()
    done: list[T] = []
    broadcast_from_rank_zero(lambda: done.append(do()))
    return done[0] if done else do()


def _store_of_rank_zero(world: World) -> dist.Store:
    """A TCPStore of this process group, on rank zero.

    torchrun's own store survives the loss of a rank, and passes the address to the ranks that replace it.
    """
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != str(True):
        return dist.TCPStore(host, port, world.world_size, is_master=world.is_rank_zero)
    agent_store = dist.TCPStore(host, port, is_master=False)
    if world.is_rank_zero:
        store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
        agent_store.set("lambdanets", str(store.port))
        return store
    deadline = time.monotonic() + _RENDEZVOUS_SECONDS
    while True:
        try:
            port = int(agent_store.get("lambdanets"))  # waits for a port, which may be that of a dead rank
            socket.create_connection((host, port), 2).close()  # TCPStore prints long warnings if refused
            return dist.TCPStore(host, port, is_master=False, timeout=_STORE_TIMEOUT)
        except (OSError, RuntimeError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def all_reduce_sum(*numbers: float) -> list[float]:
    """Sum each number over all ranks, in float64, with the same bits on every rank."""
    if not dist.is_initialized():
        return list(numbers)
    sums = torch.tensor(numbers, dtype=torch.float64)
    dist.all_reduce(sums)
    return sums.tolist()


def all_reduce_min(number: int) -> int:
    """The minimum over all ranks."""
    if not dist.is_initialized():
        return number
    smallest = torch.tensor(number)
    dist.all_reduce(smallest, dist.ReduceOp.MIN)
    return int(smallest)


def all_gather_lists(items: list[Item]) -> list[Item]:
    """The lists of all ranks, concatenated by rank."""
    if not dist.is_initialized():
        return items
    lists: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(lists, items)
    return [item for some in lists for item in some]


def broadcast_from_rank_zero(compute: Callable[[], T]) -> T:
    """The result of compute() on rank 0, broadcast to all ranks. If it raises, the other ranks raise RankZeroFailed."""
    if not dist.is_initialized():
        return compute()
    answer: list[Any] = [None, False]
    if dist.get_rank() == 0:
        try:
            answer = [compute(), True]
        finally:
            dist.broadcast_object_list(answer)
    else:
        dist.broadcast_object_list(answer)
        if not answer[1]:
            raise RankZeroFailed
    return answer[0]
