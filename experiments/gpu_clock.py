"""Times CUDA calls, eager and as a CUDA graph."""

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch

Call = Callable[[], Any]


def measure_calls(calls: Sequence[Call], samples: int = 15, graph: bool = True) -> dict[str, Any]:
    """Microseconds per call, median and quartiles: eager and, if it can be captured, as a CUDA graph.

    The calls run in turn, so calls on different tensors do not find their data in the cache.
    """
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
    seconds = max(time.monotonic() - start, 1e-5)
    rounds = max(1, min(4, int(0.02 / (seconds * len(calls)))))
    samples = max(3, min(samples, int(0.4 / (seconds * rounds * len(calls)))))
    result: dict[str, Any] = {}

    def run_all() -> None:
        for _ in range(rounds):
            for call in calls:
                call()

    result |= _measure(run_all, "eager", rounds * len(calls), samples)
    if graph:
        try:
            captured = torch.cuda.CUDAGraph()
            with torch.cuda.graph(captured):
                run_all()
            result |= _measure(captured.replay, "graph", rounds * len(calls), samples)
        except RuntimeError as error:  # cannot be captured: only the eager time
            torch.cuda.synchronize()  # raises if the context is corrupted, else the next kernel would be blamed
            result["graph_error"] = repr(error)[:300]
    return result


def _measure(run: Call, name: str, count: int, samples: int) -> dict[str, Any]:
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
