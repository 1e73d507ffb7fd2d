"""Measure the peak memory of a function call."""

import itertools
import os
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


def peak_bytes(work: Callable[[], Any], device: torch.device) -> int:
    """Return the peak of the bytes that PyTorch allocates during work(), minus the bytes allocated before.

    On a GPU this is `torch.cuda.max_memory_allocated`. On a CPU the profiler records each allocation and release of
    PyTorch's allocator, and the peak is the maximum of the running sum. This is exact and reproducible, unlike the
    resident memory of the process, which depends on earlier releases, page size and threads. Scratch memory of oneDNN
    comes from the same allocator and is included; buffers of a BLAS library are not.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        work()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise the profiler writes to the terminal
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        work()
    assert profiler.profiler is not None
    events = profiler.profiler.kineto_results.events()
    memory = [event for event in events if event.name() == "[memory]"]
    changes = (event.nbytes() for event in sorted(memory, key=lambda event: event.start_ns()))
    return max(itertools.accumulate(changes, initial=0))
