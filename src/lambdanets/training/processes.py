"""The processes of distributed training: their ranks, and the collectives over them.

torchrun starts them and sets rank and world size in the environment; without it there is one process.
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

Decision = TypeVar("Decision")
Item = TypeVar("Item")
_STORE_TIMEOUT = timedelta(minutes=10)
# Others wait while the first measures the trained model or writes; one that was lost is known by its closed connection.
_COLLECTIVE_TIMEOUT = timedelta(days=1)
# gloo raises RuntimeError and has no type for this; it names its source file first. Its failed checks begin otherwise.
_LOST_BY_GLOO = re.compile(r"\[\S*/gloo/\S+:\d+\] ")
_RENDEZVOUS_SECONDS = 300.0  # for which a rank waits for the store


@dataclass(frozen=True)
class Processes:
    """Rank and world size of this process, over all nodes and on its own node."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1

    @property
    def nodes(self) -> int:
        """The number of nodes, each with as many processes as this one."""
        return self.world_size // self.local_world_size

    @property
    def is_rank_zero(self) -> bool:
        """Whether this process, of rank 0, writes files and prints."""
        return self.rank == 0


ALONE = Processes()


def processes() -> Processes:
    """Rank and world size as torchrun has set them; one process without torchrun."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return ALONE
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    return Processes(*(int(os.environ[name]) for name in names))


def take_device(these: Processes) -> None:
    """Compute on the GPU that has this process's number, where there are GPUs. Raises InputError without one for it."""
    if not torch.cuda.is_available():
        return
    if these.local_world_size > torch.cuda.device_count():
        raise InputError(
            f"processes on a node must be at most {torch.cuda.device_count()}, its GPUs, got {these.local_world_size}"
        )
    torch.cuda.set_device(these.local_rank)


@contextmanager
def process_group() -> Iterator[Processes]:
    """Initializes the process group: gloo for CPU tensors and, on GPUs, NCCL."""
    these = processes()
    take_device(these)
    if these.world_size == 1 or dist.is_initialized():
        yield these
        return
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        with lost_connection_explained():
            dist.init_process_group(
                backend,
                store=_store_of_rank_zero(these),
                rank=these.rank,
                world_size=these.world_size,
                timeout=_COLLECTIVE_TIMEOUT,
            )
            yield these
    finally:
        if dist.is_initialized():  # Lightning may have ended it
            dist.destroy_process_group()


@contextmanager
def lost_connection_explained() -> Iterator[None]:
    """Raises InputError where a collective or the store lost the connection to another process.

    Any other error is raised as it is, such as CUDA's of peer access, or NCCL's of one GPU that two processes use.
    """
    try:
        yield
    except RuntimeError as error:
        lost = isinstance(error, dist.DistNetworkError | dist.DistStoreError)
        lost |= isinstance(error, dist.DistBackendError) and "ncclRemoteError" in str(error)
        lost |= _LOST_BY_GLOO.match(str(error)) is not None
        if not lost:
            raise
        raise InputError(
            f"another process of the run was lost or cannot be reached: {' '.join(str(error).split())[:200]}"
        ) from error


def rank_zero_first(do: Callable[[], Decision]) -> Decision:
    """Each rank's result of do(), rank 0 before the others, so that an error of rank 0 is reported once."""
    if not dist.is_initialized():
        return do()
    done: list[Decision] = []
    broadcast_from_rank_zero(lambda: done.append(do()))
    return done[0] if done else do()


def _store_of_rank_zero(these: Processes) -> dist.Store:
    """A TCPStore for these processes alone, in rank 0.

    torchrun's own outlives a lost process, and hands its address to those that are started in its stead.
    """
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != str(True):
        return dist.TCPStore(host, port, these.world_size, is_master=these.is_rank_zero)
    kept_by_torchrun = dist.TCPStore(host, port, is_master=False)
    if these.is_rank_zero:
        store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
        kept_by_torchrun.set("lambdanets", str(store.port))
        return store
    until = time.monotonic() + _RENDEZVOUS_SECONDS
    while True:
        try:
            found = int(kept_by_torchrun.get("lambdanets"))  # waits for one, but it may be a dead process's
            socket.create_connection((host, found), 2).close()  # TCPStore would tell at length of a refusal
            return dist.TCPStore(host, found, is_master=False, timeout=_STORE_TIMEOUT)
        except (OSError, RuntimeError):
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def all_reduce_sum(*numbers: float) -> list[float]:
    """The sum of each number over all ranks, in float64 and a fixed order, so that every rank has the same bits."""
    if not dist.is_initialized():
        return list(numbers)
    sums = torch.tensor(numbers, dtype=torch.float64)
    dist.all_reduce(sums)
    return sums.tolist()


def all_reduce_min(number: int) -> int:
    """The smallest of all ranks' numbers."""
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


def broadcast_from_rank_zero(decide: Callable[[], Decision]) -> Decision:
    """The result of decide() on rank 0, broadcast to all. Where it raises, the other ranks raise RankZeroFailed."""
    if not dist.is_initialized():
        return decide()
    answer: list[Any] = [None, False]
    if dist.get_rank() == 0:
        try:
            answer = [decide(), True]
        finally:
            dist.broadcast_object_list(answer)
    else:
        dist.broadcast_object_list(answer)
        if not answer[1]:
            raise RankZeroFailed
    return answer[0]
