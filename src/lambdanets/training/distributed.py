"""Distributed training: torchrun, rank and world size, and collectives."""

import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.distributed.run as torchrun
from torch.distributed import is_torchelastic_launched
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from lambdanets.errors import InputError
from lambdanets.signals import EXIT_CODE, SIGNALS

T = TypeVar("T")
# Long, because ranks wait while rank zero evaluates or writes. If a rank dies, the others notice its closed connection.
_COLLECTIVE_TIMEOUT = timedelta(days=1)
_CONNECT_SECONDS = 300.0  # until a rank gives up connecting to the store of rank zero


@dataclass(frozen=True)
class World:
    """Rank and world size of this process, over all nodes and on its own node. Rank 0 writes files and prints."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1


def get_world() -> World:
    """Return rank and world size from torchrun's environment variables, or those of a single process."""
    if not is_torchelastic_launched():
        return World()
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    return World(*(int(os.environ[name]) for name in names))


def launch(num_processes: int, arguments: list[str]) -> int:
    """Run `lambdanets` with these arguments in several processes on this machine by torchrun, and return its exit code.

    The failed process prints its own error. Raises InputError if there are too few GPUs.
    """
    if torch.cuda.is_available() and num_processes > (gpus := torch.cuda.device_count()):
        raise InputError(f"devices must be at most {gpus}, the number of GPUs, got {num_processes}")
    # otherwise torchrun would give each process one thread; PyTorch's number is that of the cores this process may use
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, torch.get_num_threads() // num_processes)))
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    # by default not SIGUSR1 and SIGUSR2, but also those that the parent process ignores, as SIGHUP under nohup
    handled = [*(signum.name for signum in SIGNALS if signal.getsignal(signum) != signal.SIG_IGN), "SIGQUIT"]
    options = ["--standalone", f"--nproc-per-node={num_processes}", f"--signals-to-handle={','.join(handled)}"]
    try:
        torchrun.run(torchrun.parse_args([*options, "-m", "--", "lambdanets", *arguments]))
    except ChildFailedError as error:
        code = error.get_first_failure()[1].exitcode
        return code if code > 0 else 1  # negative for a signal
    except (SignalException, KeyboardInterrupt):
        return EXIT_CODE
    return 0


def set_device(world: World) -> None:
    """Select the GPU whose index is the local rank, if there are GPUs."""
    if torch.cuda.is_available():
        torch.cuda.set_device(world.local_rank)


@contextmanager
def process_group() -> Iterator[World]:
    """Set the device and initialize the process group: gloo for CPU tensors, NCCL for CUDA tensors."""
    world = get_world()
    set_device(world)
    if world.world_size == 1 or dist.is_initialized():
        yield world
        return
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    store, timeout = _connect_store(world), _COLLECTIVE_TIMEOUT
    dist.init_process_group(backend, store=store, rank=world.rank, world_size=world.world_size, timeout=timeout)
    yield world  # a rank that raises exits at once: below, NCCL waits for the other ranks, which may wait for this one
    if dist.is_initialized():
        dist.destroy_process_group()


def _connect_store(world: World) -> dist.Store:
    """Create the TCPStore of this process group on rank zero, or connect to it.

    Its port is passed through the store of torchrun's agent, which survives when ranks die and are restarted.
    """
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != str(True):
        return dist.TCPStore(host, port, world.world_size, is_master=world.rank == 0)
    agent_store = dist.TCPStore(host, port, is_master=False)
    if world.rank == 0:
        store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
        agent_store.set("lambdanets", str(store.port))
        return store
    deadline = time.monotonic() + _CONNECT_SECONDS
    while True:
        try:
            port = int(agent_store.get("lambdanets"))  # waits until it is set; it may be the port of a dead rank
            socket.create_connection((host, port), 2).close()  # TCPStore would print long warnings on failure
            return dist.TCPStore(host, port, is_master=False)
        except (OSError, RuntimeError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def all_gather_lists(items: list[T]) -> list[T]:
    """Return the lists of all ranks, concatenated in order of rank."""
    if not dist.is_initialized():
        return items
    lists: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(lists, items)
    return [item for rank_items in lists for item in rank_items]


def broadcast_from_rank_zero(compute: Callable[[], T]) -> T:
    """Call compute() on rank zero and return its result on all ranks.

    If compute() raises an error, which rank zero reports, the other ranks exit without a message.
    """
    if not dist.is_initialized():
        return compute()
    result_and_success: list[Any] = [None, False]
    try:
        if dist.get_rank() == 0:
            result_and_success = [compute(), True]
    finally:
        dist.broadcast_object_list(result_and_success)
    if not result_and_success[1]:
        raise SystemExit(2)
    return result_and_success[0]
