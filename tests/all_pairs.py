"""Combinations of options in place of the full product."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any


def all_pairs(*options: Sequence[Any], valid: Callable[..., bool] = lambda *_: True) -> list[tuple[Any, ...]]:
    """Rows of one value per option, such that every pair of values is in a row, if it is in a valid one."""

    def pairs(row: tuple[int, ...]) -> set[Any]:
        return set(itertools.combinations(enumerate(row), 2))

    candidates = {
        row: pairs(row)
        for row in itertools.product(*(range(len(values)) for values in options))
        if valid(*(values[i] for values, i in zip(options, row, strict=True)))
    }
    missing, rows = set().union(*candidates.values()), []
    while missing:
        rows.append(max(candidates, key=lambda row: len(candidates[row] & missing)))
        missing -= candidates[rows[-1]]
    return [tuple(values[i] for values, i in zip(options, row, strict=True)) for row in rows]


def in_turn(cases: Iterable[Any], *options: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Each case once, with the combinations of the options in turn."""
    combinations = itertools.cycle(itertools.product(*options))
    return [(case, *row) for case, row in zip(cases, combinations, strict=False)]
