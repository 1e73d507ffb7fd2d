"""Launches one training process per device on this machine, as torchrun does."""

import logging
import os
import sys
import uuid

import torch
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from lambdanets.errors import InputError

INTERRUPTED = 130  # exit code


def launch(num_processes: int, arguments: list[str]) -> int:
    """Run `lambdanets` with these arguments in num_processes processes. Return 0 or the exit code of the first failure.

    The failed process prints its own error. Raises InputError if there are too few GPUs.
    """
    if torch.cuda.is_available() and num_processes > torch.cuda.device_count():
        raise InputError(
            f"devices must be at most {torch.cuda.device_count()}, the number of GPUs, got {num_processes}"
        )
    # otherwise each process would start one thread per core
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // num_processes)))
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_processes,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        max_restarts=0,
        monitor_interval=0.1,
    )
    try:
        elastic_launch(config, sys.executable)("-m", "lambdanets", *arguments)
    except ChildFailedError as error:
        code = error.get_first_failure()[1].exitcode
        return code if code > 0 else 1  # negative for a signal
    except (SignalException, KeyboardInterrupt):
        return INTERRUPTED
    return 0
