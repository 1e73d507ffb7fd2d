"""Ratios of benchmark rows within a case, and exponents over the cases. Noisy times are excluded."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from lambdanets_lab.benchmark.measurement import Row
from lambdanets_lab.timing import fit_exponent, summarize

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


def fit_exponents(rows: Sequence[Row]) -> dict[tuple[str, str, str], float]:
    """Fit the exponent of time against n to the larger half of the sizes, by candidate, setting and pass."""
    points = [(row, seconds) for row in rows if (seconds := quiet_seconds(row))]
    groups = group(points, lambda point: (point[0].candidate, point[0].sizes["setting"], point[0].sizes["pass"]))
    exponents = {}
    for key, measured in groups.items():
        larger = measured[-max(2, math.ceil(len(measured) / 2)) :]
        exponent = fit_exponent([row.sizes["n"] for row, _ in larger], [seconds for _, seconds in larger])
        if exponent is not None:
            exponents[key] = exponent
    return exponents
