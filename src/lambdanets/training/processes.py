"""The processes that train one model together: who they are, and what they tell each other.

They are started by torchrun, which says to each in its environment which one it is; without it there is one.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from lambdanets.errors import AnotherRefused, InputError

Decision = TypeVar("Decision")


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


@contextmanager
def joined() -> Iterator[Processes]:
    """Joins the processes for what they compute and tell each other, by gloo and, between GPUs, NCCL."""
    these = processes()
    if torch.cuda.is_available():
        torch.cuda.set_device(these.local_rank)
    if these.count == 1 or dist.is_initialized():
        yield these
        return
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield these
    except RuntimeError as error:
        if not any(sign in str(error) for sign in ("peer", "timed out", "Timed out", "Socket")):
            raise
        raise InputError(f"another process of the run was lost: {' '.join(str(error).split())[:200]}") from error
    finally:
        if dist.is_initialized():  # Lightning may have ended it
            dist.destroy_process_group()


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


def together(items: list[str]) -> list[str]:
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
