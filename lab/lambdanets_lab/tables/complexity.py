"""Fit the exponents of lambda layers in Tables 2, 6 and 7 to multiply-adds counted on the meta device."""

import functools
import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from lambdanets.ops import lambda_interaction

Sizes = Mapping[str, int]

# At these sizes, lower-order terms such as the cost of applying lambdas change the exponents by less than this.
TOLERANCE = 0.05

_GRID: dict[str, tuple[int, ...]] = {
    "b": (2, 8),
    "n": (1024, 4096),
    "m": (1024, 4096),
    "k": (8, 32),
    "d": (128, 512),
    "h": (2, 8),
}


def factors(term: str) -> dict[str, int]:
    """Return the exponent of each factor of a complexity term: for 'bnmkd/h', 1 for b, n, m, k, d and -1 for h."""
    numerator, _, denominator = term.partition("/")
    return dict.fromkeys(numerator, 1) | dict.fromkeys(denominator, -1)


def fit(measured: Sequence[tuple[Sizes, float]]) -> dict[str, float]:
    """Fit the exponents of all sizes by least squares of logarithms."""
    names = list(measured[0][0])
    logs = [[1.0, *(math.log(sizes[name]) for name in names)] for sizes, _ in measured]
    solution = np.linalg.lstsq(np.array(logs), np.log([value for _, value in measured]), rcond=None)[0]
    return dict(zip(names, solution[1:].tolist(), strict=True))


@functools.cache
def exponents(table: str, row: str) -> dict[str, float] | None:
    """Fit the exponents of a row's time; None for a row that is not a lambda layer."""
    if (table, row) not in _LAYERS:
        return None
    options, sizes = _LAYERS[table, row]
    return fit([(point, _multiply_adds(point, **options)) for point in sizes])


def matches_term(term: str, fitted: Mapping[str, float]) -> bool:
    """Whether fitted exponents equal those of the term, and 0 for sizes that it does not contain."""
    expected = factors(term)
    return all(abs(exponent - expected.get(name, 0)) <= TOLERANCE for name, exponent in fitted.items())


def _multiply_adds(s: Sizes, multi_head: bool = False) -> float:
    lead = (s["h"],) if multi_head else ()
    intra_depth = (s["u"],) if "u" in s else ()
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        lambda_interaction(
            torch.empty(s["b"], s["h"], s["n"], s["k"]),
            torch.empty(s["b"], *lead, s["m"], s["k"], *intra_depth),
            torch.empty(s["b"], *lead, s["m"], s["d"] // s["h"], *intra_depth),
            torch.empty(*lead, s["n"], s["m"], s["k"], *intra_depth),
            multi_head=multi_head,
        )
    return counter.get_total_flops() / 2


def _sizes(**changes: tuple[int, ...]) -> list[Sizes]:
    """Make half of the grid points: those with an even number of large sizes."""
    grid = _GRID | changes
    points = (dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values()))
    return [sizes for sizes in points if sum(value > grid[name][0] for name, value in sizes.items()) % 2 == 0]


_LAYERS: dict[tuple[str, str], tuple[dict[str, bool], list[Sizes]]] = {
    ("2", "lambda layer"): ({}, _sizes()),
    ("6", "multi-head"): ({"multi_head": True}, _sizes()),
    ("6", "multi-query"): ({}, _sizes()),
    ("7", "u>1"): ({}, _sizes(u=(2, 8))),
}
