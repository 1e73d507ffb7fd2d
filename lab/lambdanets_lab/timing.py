"""Time several functions interleaved, and compute statistics of the samples."""

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

K = TypeVar("K")
# Minimum number of timed runs of each candidate, even if they exceed the time budget.
MIN_REPEATS = 3
# Samples are noisy if the upper quartile is more than this times the lower quartile.
NOISY_RATIO = 1.5
# Maximum number of times that noisy candidates are timed again.
MAX_EXTRA_PASSES = 2


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
    on_progress: Callable[[str], Any] = lambda message: None,
) -> dict[K, list[float]]:
    """Time the runs in rounds, each once per round in random order; return the seconds of each.

    Drift of clock rates or system load thus affects all runs equally. Before timing, each runs twice, to warm up and to
    estimate how many runs fit into `seconds`; one that takes longer than `seconds` runs only once. The number of
    timed runs is clamped to MIN_REPEATS and `repeats`, and they are spread evenly over the rounds.
    synchronize: waits for the device; called before and after each run.

    Noisy candidates (`is_noisy`) are timed again with the same number of runs, at most MAX_EXTRA_PASSES times.
    """

    def time_once(name: K) -> float:
        synchronize()
        start = clock()
        runs[name]()
        synchronize()
        return clock() - start

    samples: dict[K, list[float]] = {name: [] for name in runs}
    counts = {}
    for name in runs:
        on_progress(f"{name}, warming up")
        duration = time_once(name)
        if duration < seconds:
            duration = time_once(name)
        num_affordable = int(seconds / max(duration, 1e-9))
        counts[name] = min(repeats, max(num_affordable, MIN_REPEATS))
    generator = random.Random(0)
    for extra_pass in range(1 + MAX_EXTRA_PASSES):
        if extra_pass:
            counts = {name: count for name, count in counts.items() if is_noisy(samples[name])}
        rounds = max(counts.values(), default=0)
        for number in range(rounds):
            # the runs of each are spread evenly, the first in round 0
            names = [name for name, n in counts.items() if number * n // rounds > (number - 1) * n // rounds]
            generator.shuffle(names)
            for name in names:
                note = ", repeated because of noise" if extra_pass else ""
                on_progress(f"{name}, round {number + 1} of {rounds}{note}")
                samples[name].append(time_once(name))
    return samples


def time_in_turn(
    runs: Mapping[K, Callable[[], Any]],
    *,
    repeats: int,
    seconds: float,
    on_progress: Callable[[str], Any] = lambda message: None,
) -> dict[K, dict[str, float]]:
    """Time functions interleaved; return median and quartiles of the seconds of each."""
    samples = time_interleaved(runs, repeats=repeats, seconds=seconds, on_progress=on_progress)
    return {
        name: {key: round(value, 5) for key, value in summarize(times)._asdict().items()}
        for name, times in samples.items()
    }


def summarize(samples: Sequence[float]) -> Summary:
    """Compute median and quartiles; a single sample is all three."""
    if len(samples) < 2:
        return Summary(samples[0], samples[0], samples[0])
    lower, median, upper = statistics.quantiles(samples, n=4, method="inclusive")
    return Summary(median, lower, upper)


def is_noisy(samples: Sequence[float]) -> bool:
    """Whether the interquartile range is too large to compare medians."""
    if len(samples) < MIN_REPEATS:
        return False
    _, lower, upper = summarize(samples)
    return upper > NOISY_RATIO * lower
