"""The median time of a call on a device."""

import math
import statistics
import time
from collections.abc import Callable

import torch


def median_seconds(function: Callable[[], object], device: str, num_runs: int = 15) -> float:
    """Measure the median time of a call in seconds, after two warm-up calls."""
    if device != "cpu":
        return _median_seconds_on_gpu(function, num_runs)
    times = []
    for run in range(num_runs + 2):
        start = time.perf_counter()
        function()
        if run > 1:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def _median_seconds_on_gpu(function: Callable[[], object], num_runs: int) -> float:
    """Measure with CUDA events around several milliseconds of calls. Synchronizing after each call would add 10 us."""
    for _ in range(2):
        function()
    torch.cuda.synchronize()
    start = time.perf_counter()
    function()
    torch.cuda.synchronize()
    num_calls = max(1, min(500, math.ceil(5e-3 / (time.perf_counter() - start))))
    times = []
    for _ in range(num_runs):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(num_calls):
            function()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3 / num_calls)
    return statistics.median(times)
