"""Aggregates of benchmark rows over the cases. Noisy times are excluded; "noisy" counts them."""

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


def peak_bytes(row: Row) -> float | None:
    """Return the peak memory; None if it was not measured."""
    return row.peak_bytes


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


def mean_ratios(rows: Sequence[Row], quantity: Quantity) -> list[dict[str, Any]]:
    """Return the geometric mean over shapes of baseline / ours, per scope and pass."""
    groups: dict[tuple[Any, ...], list[float]] = {}
    noisy: dict[tuple[Any, ...], int] = {}
    ours = {tuple(row.sizes.items()): row for row in rows if row.candidate == OURS}
    for row, ratio in ratios(rows, quantity, OURS):
        if row.candidate == OURS:
            continue
        key = (row.candidate, row.sizes["scope"], row.sizes["pass"])
        is_noisy = quantity is median_seconds and (row.noisy or ours[tuple(row.sizes.items())].noisy)
        noisy[key] = noisy.get(key, 0) + is_noisy
        groups.setdefault(key, []).extend([] if is_noisy else [ratio])
    return [
        {
            "candidate": name,
            "scope": scope,
            "pass": phase,
            "geometric_mean_over_ours": statistics.geometric_mean(values) if values else None,
            "shapes": len(values),
            "noisy": noisy[name, scope, phase],
        }
        for (name, scope, phase), values in groups.items()
    ]


def relative_throughput(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the throughput relative to plain ResNet-50."""
    plain = {row.sizes["pass"]: row for row in rows if row.candidate == PLAIN}
    entries = []
    for row, ratio in ratios(rows, median_seconds, PLAIN):
        noisy = row.noisy or plain[row.sizes["pass"]].noisy
        entry = {"candidate": row.candidate, "pass": row.sizes["pass"]}
        entries.append(entry | {"throughput_relative_to_resnet50": None if noisy else 1 / ratio, "noisy": int(noisy)})
    return entries


def fit_exponents(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Fit the exponent of time against n to the larger half of the measured sizes."""
    groups: dict[tuple[Any, ...], list[tuple[int, float]]] = {}
    noisy: dict[tuple[Any, ...], int] = {}
    for row in rows:
        if row.seconds:
            key = (row.candidate, row.sizes["setting"], row.sizes["pass"])
            points = groups.setdefault(key, [])
            points += [] if row.noisy else [(row.sizes["n"], summarize(row.seconds).median)]
            noisy[key] = noisy.get(key, 0) + row.noisy
    entries = []
    for (name, setting, phase), points in groups.items():
        if not points:
            continue
        larger = points[-max(2, math.ceil(len(points) / 2)) :]
        exponent = fit_exponent([n for n, _ in larger], [seconds for _, seconds in larger])
        if exponent is not None:
            entry = {"candidate": name, "setting": setting, "pass": phase, "exponent_of_time": exponent}
            sizes = {"from_n": larger[0][0], "to_n": larger[-1][0], "noisy": noisy[name, setting, phase]}
            entries.append(entry | sizes)
    return entries
