"""Times CUDA calls, eager and as a CUDA graph."""

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch

Call = Callable[[], Any]


def time_of(calls: Sequence[Call], samples: int = 15, graph: bool = True) -> dict[str, Any]:
    """Microseconds per call over alternating calls: median and quartiles, eager and, if capturable, as a graph."""
    if not torch.cuda.is_available():
        start = time.perf_counter()
        for call in calls:
            call()
        return {"eager_us": (time.perf_counter() - start) / len(calls) * 1e6}
    for call in calls[:2]:
        call()
    torch.cuda.synchronize()
    start = time.monotonic()
    calls[0]()
    torch.cuda.synchronize()
    once = max(time.monotonic() - start, 1e-5)
    turns = max(1, min(4, int(0.02 / (once * len(calls)))))
    samples = max(3, min(samples, int(0.4 / (once * turns * len(calls)))))
    result: dict[str, Any] = {}

    def run_all() -> None:
        for _ in range(turns):
            for call in calls:
                call()

    result |= _measured(run_all, "eager", turns * len(calls), samples)
    if graph:
        try:
            captured = torch.cuda.CUDAGraph()
            with torch.cuda.graph(captured):
                run_all()
            result |= _measured(captured.replay, "graph", turns * len(calls), samples)
        except RuntimeError as error:  # not capturable: only the eager time
            result["graph_error"] = repr(error)[:300]
    return result


def _measured(run: Call, name: str, count: int, samples: int) -> dict[str, Any]:
    times = []
    for _ in range(samples):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / count)
    times.sort()
    return {f"{name}_us": median(times), f"{name}_quartiles_us": [times[len(times) // 4], times[(3 * len(times)) // 4]]}
