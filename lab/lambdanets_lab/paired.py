"""Paired differences over seeds, with confidence intervals."""

import math
import statistics
from collections.abc import Mapping, Sequence

from scipy.stats import t as student_t


def paired_differences(scores: Mapping[int, float], baseline: Mapping[int, float]) -> list[float]:
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
    mean = f"{statistics.fmean(differences):+.{digits}f}"
    if len(differences) < 2:
        return mean
    low, high = confidence_interval(differences)
    return f"{mean} ({low:+.{digits}f} to {high:+.{digits}f})"
