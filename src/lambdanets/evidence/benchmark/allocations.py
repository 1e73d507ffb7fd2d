"""Peak memory of a piece of work."""

import os
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


def peak_bytes(work: Callable[[], Any], device: torch.device) -> int:
    """Bytes that work() holds at its fullest, beyond what was held before.

    On a GPU this is what PyTorch's allocator says, `torch.cuda.max_memory_allocated`. On a processor the profiler
    records each allocation and release of PyTorch's allocator, in order, and the highest running sum is the peak:
    exact to the byte and the same at every run, which the resident memory of a process is not (it depends on what was
    freed before, on page size and on threads). oneDNN's scratch memory comes from the same allocator and counts; what
    a BLAS library takes for itself to pack matrices does not.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        work()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the profiler's library writes to the terminal
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        work()
    assert profiler.profiler is not None
    events = profiler.profiler.kineto_results.events()
    memory = [event for event in events if event.name() == "[memory]"]
    return highest_sum(event.nbytes() for event in sorted(memory, key=lambda event: event.start_ns()))


def highest_sum(changes: Iterable[int]) -> int:
    """The highest running sum, 0 before the first."""
    held = highest = 0
    for change in changes:
        held += change
        highest = max(highest, held)
    return highest
