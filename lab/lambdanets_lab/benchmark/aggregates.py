"""Aggregates of benchmark rows over the cases. Noisy times are excluded."""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from lambdanets.timing import fit_exponent, summarize
from lambdanets_lab.benchmark.layer import OURS
from lambdanets_lab.benchmark.measurement import Row
from lambdanets_lab.benchmark.model import PLAIN

Quantity = Callable[[Row], float | None]


def median_seconds(row: Row) -> float | None:
    """Return the median time; None if it was not measured."""
    return summarize(row.seconds).median if row.seconds else None


def quiet_seconds(row: Row) -> float | None:
    """Return the median time; None also if the times are noisy."""
    return None if row.noisy else median_seconds(row)


def ratios(rows: Iterable[Row], quantity: Quantity, base: str) -> list[tuple[Row, float]]:
    """Pair each row with the ratio of its quantity to that of the candidate `base` in the same case, if both exist."""
    rows = list(rows)
    denominators = {tuple(row.sizes.items()): quantity(row) for row in rows if row.candidate == base}
    pairs = []
    for row in rows:
        numerator, denominator = quantity(row), denominators.get(tuple(row.sizes.items()))
        if numerator and denominator:
            pairs.append((row, numerator / denominator))
    return pairs


def group(items: Iterable[Any], key: Callable[[Any], Any]) -> dict[Any, list[Any]]:
    """Return the items by their key, in the order of their first item."""
    groups: dict[Any, list[Any]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def mean_ratios(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the geometric mean over shapes of the times of baseline / ours, per scope and pass."""
    pairs = [pair for pair in ratios(rows, quiet_seconds, OURS) if pair[0].candidate != OURS]
    groups = group(pairs, lambda pair: (pair[0].candidate, pair[0].sizes["scope"], pair[0].sizes["pass"]))
    return [
        {
            "candidate": name,
            "scope": scope,
            "pass": phase,
            "geometric_mean_over_ours": statistics.geometric_mean(ratio for _, ratio in pairs),
            "shapes": len(pairs),
        }
        for (name, scope, phase), pairs in groups.items()
    ]


def relative_throughput(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the throughput relative to plain ResNet-50."""
    return [
        {"candidate": row.candidate, "pass": row.sizes["pass"], "throughput_relative_to_resnet50": 1 / ratio}
        for row, ratio in ratios(rows, quiet_seconds, PLAIN)
    ]


def fit_exponents(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Fit the exponent of time against n to the larger half of the measured sizes."""
    points = [(row, seconds) for row in rows if (seconds := quiet_seconds(row))]
    groups = group(points, lambda point: (point[0].candidate, point[0].sizes["setting"], point[0].sizes["pass"]))
    entries = []
    for (name, setting, phase), measured in groups.items():
        larger = measured[-max(2, math.ceil(len(measured) / 2)) :]
        sizes = [row.sizes["n"] for row, _ in larger]
        if (exponent := fit_exponent(sizes, [seconds for _, seconds in larger])) is not None:
            entry = {"candidate": name, "setting": setting, "pass": phase, "exponent_of_time": exponent}
            entries.append(entry | {"from_n": sizes[0], "to_n": sizes[-1]})
    return entries
