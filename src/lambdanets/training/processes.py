"""The processes that train one model together: who they are, and what they tell each other.

They are started by torchrun, which says to each in its environment which one it is; without it there is one.
"""

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from lambdanets.errors import AnotherRefused, InputError

Decision = TypeVar("Decision")
Item = TypeVar("Item")
_ANSWER = timedelta(minutes=10)
# Others wait while the first measures the trained model or writes; one that was lost is known by its closed connection.
_UNTIL_GIVEN_UP = timedelta(days=1)
_PATIENCE = 300.0  # seconds that a process waits for the first to be there


@dataclass(frozen=True)
class Processes:
    """How many processes train together, on all machines and on this one, and which of them this is."""

    rank: int = 0
    count: int = 1
    local_rank: int = 0
    local_count: int = 1

    @property
    def machines(self) -> int:
        """How many machines, each with as many processes as this one."""
        return self.count // self.local_count

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and speaks."""
        return self.rank == 0


ALONE = Processes()


def processes() -> Processes:
    """The processes that torchrun has started, and which of them this is."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return ALONE
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    return Processes(*(int(os.environ[name]) for name in names))


def take_device(these: Processes) -> None:
    """Compute on the GPU that has this process's number, where there are GPUs. Raises InputError without one for it."""
    if not torch.cuda.is_available():
        return
    if these.local_count > torch.cuda.device_count():
        raise InputError(
            f"processes on a machine must be at most {torch.cuda.device_count()}, its GPUs, got {these.local_count}"
        )
    torch.cuda.set_device(these.local_rank)


@contextmanager
def joined() -> Iterator[Processes]:
    """Joins the processes for what they compute and tell each other, by gloo and, between GPUs, NCCL."""
    these = processes()
    take_device(these)
    if these.count == 1 or dist.is_initialized():
        yield these
        return
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        dist.init_process_group(
            backend, store=_fresh_store(these), rank=these.rank, world_size=these.count, timeout=_UNTIL_GIVEN_UP
        )
        yield these
    except RuntimeError as error:
        if not any(sign in str(error) for sign in ("peer", "timed out", "Timed out", "Socket")):
            raise
        raise InputError(f"another process of the run was lost: {' '.join(str(error).split())[:200]}") from error
    finally:
        if dist.is_initialized():  # Lightning may have ended it
            dist.destroy_process_group()


def first_then_all(do: Callable[[], Decision]) -> Decision:
    """What each process gets by doing the same, the others after the first: what it refuses is said once."""
    if not dist.is_initialized():
        return do()
    done: list[Decision] = []
    decided_by_first(lambda: done.append(do()))
    return done[0] if done else do()


def _fresh_store(these: Processes) -> dist.Store:
    """A store of keys for these processes alone, kept by the first.

    torchrun's own outlives a lost process, and tells those that are started in its stead the addresses of the dead.
    """
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != str(True):
        return dist.TCPStore(host, port, these.count, is_master=these.first)
    kept_by_torchrun = dist.TCPStore(host, port, is_master=False)
    if these.first:
        store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
        kept_by_torchrun.set("lambdanets", str(store.port))
        return store
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            found = int(kept_by_torchrun.get("lambdanets"))  # waits for one, but it may be a dead process's
            socket.create_connection((host, found), 2).close()  # TCPStore would tell at length of a refusal
            return dist.TCPStore(host, found, is_master=False, timeout=_ANSWER)
        except (OSError, RuntimeError):
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def total(*numbers: float) -> list[float]:
    """Each number summed over the processes, in float64 and in a fixed order; the same in all of them."""
    if not dist.is_initialized():
        return list(numbers)
    sums = torch.tensor(numbers, dtype=torch.float64)
    dist.all_reduce(sums)
    return sums.tolist()


def least(number: int) -> int:
    """The least of the processes' numbers."""
    if not dist.is_initialized():
        return number
    smallest = torch.tensor(number)
    dist.all_reduce(smallest, dist.ReduceOp.MIN)
    return int(smallest)


def together(items: list[Item]) -> list[Item]:
    """The lists of all processes, joined in their order."""
    if not dist.is_initialized():
        return items
    lists: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(lists, items)
    return [item for some in lists for item in some]


def decided_by_first(decide: Callable[[], Decision]) -> Decision:
    """What the first process decides, known to all. Where it raises, the others raise AnotherRefused."""
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
            raise AnotherRefused
    return answer[0]
