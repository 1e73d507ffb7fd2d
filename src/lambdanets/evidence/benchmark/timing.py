"""Times contestants side by side, and what is said about the times."""

import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

# A slow contestant is timed this often all the same.
FEWEST_REPEATS = 3
# Times are noisy where the upper quartile is more than so many times the lower one.
NOISY = 1.5
# What is noisy is timed again, as often as before, so many times at most.
MORE_PASSES = 2


class Summary(NamedTuple):
    """Median and quartiles of some samples."""

    median: float
    lower_quartile: float
    upper_quartile: float


def interleave(
    runs: Mapping[str, Callable[[], Any]],
    samples: Mapping[str, list[float]],
    *,
    repeats: int,
    seconds: float,
    seed: int = 0,
    synchronize: Callable[[], Any] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
    tell: Callable[[str], Any] = lambda said: None,
) -> None:
    """Time the runs in rounds, each once a round in an order drawn anew, and append seconds to samples[name].

    What drifts (clock rates, other work on the machine) so meets all alike. Before that each runs twice: to warm up,
    and to see how often it fits into `seconds`; one that takes longer than that, once. It then takes part in that many
    rounds, `repeats` at most and FEWEST_REPEATS at least, spread evenly over all. Interrupted, it leaves the samples
    taken so far. synchronize waits for the device, before and after each run: launching is part of the time.

    What is noisy then (`is_noisy`) takes part in as many rounds again, MORE_PASSES times at most, until it is not.
    """

    def timed(name: str) -> float:
        synchronize()
        start = clock()
        runs[name]()
        synchronize()
        return clock() - start

    counts = {}
    for name in runs:
        tell(f"{name}, warming up")
        took = timed(name)
        if took < seconds:
            took = timed(name)
        fitting = int(seconds / max(took, 1e-9))
        counts[name] = min(repeats, max(fitting, FEWEST_REPEATS))
    order = random.Random(seed)
    for again in range(1 + MORE_PASSES):
        if again:
            counts = {name: count for name, count in counts.items() if is_noisy(samples[name])}
        rounds = max(counts.values(), default=0)
        for number in range(rounds):
            names = [name for name, count in counts.items() if _takes_part(number, count, rounds)]
            order.shuffle(names)
            for name in names:
                tell(f"{name}, round {number + 1} of {rounds}{', again because of noise' if again else ''}")
                samples[name].append(timed(name))


def _takes_part(number: int, count: int, rounds: int) -> bool:
    """Whether one that runs `count` times in `rounds` rounds runs in this one: evenly spread, the first among them."""
    return number * count // rounds != (number - 1) * count // rounds or number == 0


def summarize(samples: Sequence[float]) -> Summary:
    """Median and quartiles; of a single sample all three are that one."""
    if len(samples) < 2:
        return Summary(samples[0], samples[0], samples[0])
    lower, median, upper = statistics.quantiles(samples, n=4, method="inclusive")
    return Summary(median, lower, upper)


def is_noisy(samples: Sequence[float]) -> bool:
    """Whether the quartiles are too far apart for a median to be compared with others."""
    if len(samples) < FEWEST_REPEATS:
        return False
    _, lower, upper = summarize(samples)
    return upper > NOISY * lower


def geometric_mean(ratios: Sequence[float]) -> float:
    """The mean that is as far from a ratio and its inverse."""
    return math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))


def fit_exponent(sizes: Sequence[float], measured: Sequence[float]) -> float | None:
    """The exponent p of measured ~ size^p by least squares in the logarithms; None for fewer than two sizes."""
    if len(set(sizes)) < 2:
        return None
    logs = [math.log(size) for size in sizes]
    return statistics.linear_regression(logs, [math.log(value) for value in measured]).slope
