"""Scores of training runs over seeds: paired differences with confidence intervals."""

import functools
import math
import operator
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scipy.stats import t as student_t

Scores = Mapping[int, float]  # by seed


def scores_by_seed(runs: Iterable[Mapping[str, Any]], select: Mapping[str, Any], *score: str) -> dict[int, float]:
    """Return a score in percent, by seed, of the runs whose fields have the selected values; `score`: nested keys."""
    scores = {}
    for run in runs:
        if all(run[name] == value for name, value in select.items()):
            value: Any = functools.reduce(operator.getitem, score, run)
            if value is not None:
                scores[run["seed"]] = 100 * value
    return scores


def paired_differences(scores: Scores, baseline: Scores) -> list[float]:
    """Return score - baseline of each seed that both have, by increasing seed: the effect of the seed cancels."""
    return [scores[seed] - baseline[seed] for seed in sorted(scores.keys() & baseline.keys())]


def confidence_interval(differences: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Return the confidence interval of the mean of normal samples, by Student's t; infinite for one sample.

    The samples are runs with different seeds, so the interval is for other seeds, not for other test images.
    """
    count = len(differences)
    if count < 2:
        return -math.inf, math.inf
    half = float(student_t.ppf((1 + confidence) / 2, count - 1)) * statistics.stdev(differences) / count**0.5
    mean = statistics.fmean(differences)
    return mean - half, mean + half


def format_difference(differences: Sequence[float], digits: int = 2) -> str:
    """Format the mean and its 95% interval, such as "+1.50 (-0.02 to +3.01)"; only the mean of a single difference."""
    mean = f"{statistics.fmean(differences):+z.{digits}f}"
    if len(differences) < 2:
        return mean
    low, high = confidence_interval(differences)
    return f"{mean} ({low:+z.{digits}f} to {high:+z.{digits}f})"


def processors(runs: Iterable[Mapping[str, Any]]) -> str:
    """Name the processors or GPUs that trained runs, with their seeds if there are several."""
    seeds: dict[str, set[int]] = {}
    for run in runs:
        seeds.setdefault(run["hardware"].get("gpu") or run["hardware"]["processor"], set()).add(run["seed"])
    if len(seeds) == 1:
        return next(iter(seeds))
    names = (
        f"{name} (seed{'s' * (len(numbers) > 1)} {', '.join(map(str, sorted(numbers)))})"
        for name, numbers in seeds.items()
    )
    return " and ".join(names)
