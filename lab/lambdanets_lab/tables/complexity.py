"""Fit the exponents of Tables 2, 6 and 7 to multiply-adds counted on the meta device."""

import functools
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from lambdanets.ops import lambda_interaction
from lambdanets_lab.mixers.linear import linear_attention

Sizes = Mapping[str, int]
Operation = Callable[[Any], object]

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
    exponents = dict.fromkeys(re.findall(r"\([^)]*\)|\w", numerator), 1)
    return exponents | dict.fromkeys(re.findall(r"\w", denominator), -1)


def factor_value(factor: str, sizes: Sizes) -> float:
    """Evaluate a factor: a letter, or a sum of products such as '(hk+d)'."""
    return sum(math.prod(sizes[letter] for letter in product) for product in factor.strip("()").split("+"))


def fit(term: str, measured: Sequence[tuple[Sizes, float]]) -> dict[str, float]:
    """Fit the exponents of the term's factors, and of all other sizes that vary, by least squares of logarithms."""
    names = list(factors(term))
    covered = set("".join(names))
    varying = [letter for letter in measured[0][0] if len({sizes[letter] for sizes, _ in measured}) > 1]
    names += [letter for letter in varying if letter not in covered]
    logs = [[1.0, *(math.log(factor_value(name, sizes)) for name in names)] for sizes, _ in measured]
    solution = np.linalg.lstsq(np.array(logs), np.log([value for _, value in measured]), rcond=None)[0]
    return dict(zip(names, solution[1:].tolist(), strict=True))


@functools.cache
def exponents(table: str, row: str, term: str) -> dict[str, float] | None:
    """Fit the exponents of a row's time; None for a row without an operation of this package."""
    if (table, row) not in _OPERATIONS:
        return None
    operation, sizes = _OPERATIONS[table, row]
    return fit(term, [(point, _multiply_adds(operation, point)) for point in sizes])


def matches_term(term: str, fitted: Mapping[str, float]) -> bool:
    """Whether fitted exponents equal those of the term, and 0 for sizes that it does not contain."""
    expected = factors(term)
    return all(abs(exponent - expected.get(name, 0)) <= TOLERANCE for name, exponent in fitted.items())


def _multiply_adds(operation: Operation, sizes: Sizes) -> float:
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        operation(sizes)
    return counter.get_total_flops() / 2


def _sizes(**changes: tuple[int, ...]) -> list[Sizes]:
    """Make half of the grid points: those with an even number of large sizes."""
    grid = _GRID | changes
    points = (dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values()))
    return [sizes for sizes in points if sum(value > grid[name][0] for name, value in sizes.items()) % 2 == 0]


def _attention_sizes() -> list[Sizes]:
    """Make the grid for attention, with a fixed ratio of k and d, since (hk + d) is one factor."""
    return [sizes for sizes in _sizes(h=(4,)) if sizes["d"] == 16 * sizes["k"]]


def _attention(s: Sizes, relative: bool = False) -> Tensor:
    queries, keys = torch.empty(s["b"], s["h"], s["n"], s["k"]), torch.empty(s["b"], s["h"], s["m"], s["k"])
    logits = queries @ keys.mT
    if relative:
        logits = logits + torch.einsum("bhnk,nmk->bhnm", queries, torch.empty(s["n"], s["m"], s["k"]))
    return logits.softmax(dim=-1) @ torch.empty(s["b"], s["h"], s["m"], s["d"] // s["h"])


def _linear_attention(s: Sizes) -> Tensor:
    lead = (s["b"], s["h"], s["n"])
    values = torch.empty(*lead, s["d"] // s["h"])
    return linear_attention(torch.empty(*lead, s["k"]), torch.empty(*lead, s["k"]), values, multi_head=True)


def _lambda_layer(s: Sizes, multi_head: bool = False) -> Tensor:
    lead = (s["h"],) if multi_head else ()
    intra_depth = (s["u"],) if "u" in s else ()
    return lambda_interaction(
        torch.empty(s["b"], s["h"], s["n"], s["k"]),
        torch.empty(s["b"], *lead, s["m"], s["k"], *intra_depth),
        torch.empty(s["b"], *lead, s["m"], s["d"] // s["h"], *intra_depth),
        torch.empty(*lead, s["n"], s["m"], s["k"], *intra_depth),
        multi_head=multi_head,
    )


def _lambda_convolution(s: Sizes) -> Tensor:
    side, scope = math.isqrt(s["n"]), math.isqrt(s["r"])
    maps = torch.empty(s["b"] * s["d"] // s["h"], 1, side, side)
    weights = torch.empty(s["k"], 1, scope, scope)
    lambdas = F.conv2d(maps, weights, padding=scope // 2).flatten(2)
    lambdas = lambdas.unflatten(0, (s["b"], -1)).permute(0, 3, 2, 1)  # (b, n, k, v)
    return torch.empty(s["b"], s["n"], s["h"], s["k"]) @ lambdas


_OPERATIONS: dict[tuple[str, str], tuple[Operation, list[Sizes]]] = {
    ("2", "attention"): (_attention, _attention_sizes()),
    ("2", "relative attention"): (functools.partial(_attention, relative=True), _attention_sizes()),
    ("2", "linear attention"): (_linear_attention, _sizes(m=(1,))),
    ("2", "lambda layer"): (_lambda_layer, _sizes()),
    # with large scopes, most of the cost is computing the lambdas, not applying them
    ("2", "lambda convolution"): (_lambda_convolution, _sizes(m=(1,), r=(31**2, 63**2))),
    ("6", "multi-head"): (functools.partial(_lambda_layer, multi_head=True), _sizes()),
    ("6", "multi-query"): (_lambda_layer, _sizes()),
    ("7", "u>1"): (_lambda_layer, _sizes(u=(2, 8))),
}
