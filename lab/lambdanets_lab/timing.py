"""Time several functions interleaved, and compute statistics of the samples."""

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from lambdanets.signals import check_signals

K = TypeVar("K")
# Minimum number of timed runs of each candidate, even if they exceed the time budget.
MIN_REPEATS = 3


class Summary(NamedTuple):
    median: float
    lower_quartile: float
    upper_quartile: float


def time_interleaved(
    runs: Mapping[K, Callable[[], Any]],
    *,
    repeats: int,
    seconds: float,
    synchronize: Callable[[], Any] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[K, list[float]]:
    """Time the runs in rounds, each once per round in random order; return the seconds of each.

    Drift of clock rates or system load thus affects all runs equally. Each runs once before, to warm up. It is timed
    until its samples exceed `seconds`, but at least MIN_REPEATS and at most `repeats` times.
    synchronize: waits for the device; called before and after each run.
    Raises KeyboardInterrupt if a signal has arrived.
    """
    samples: dict[K, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    generator = random.Random(0)
    for number in range(repeats):
        names = [name for name, times in samples.items() if number < MIN_REPEATS or sum(times) < seconds]
        generator.shuffle(names)
        for name in names:
            check_signals()
            synchronize()
            start = clock()
            runs[name]()
            synchronize()
            samples[name].append(clock() - start)
    return samples


def summarize(samples: Sequence[float]) -> Summary:
    """Compute median and quartiles; a single sample is all three."""
    if len(samples) < 2:
        return Summary(samples[0], samples[0], samples[0])
    lower, median, upper = statistics.quantiles(samples, n=4, method="inclusive")
    return Summary(median, lower, upper)
