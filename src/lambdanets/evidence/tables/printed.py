"""What the paper prints: its tables as data, a figure at a time."""

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from lambdanets.errors import InputError, nearest

# Columns that follow from the architecture alone, and can therefore be counted.
COUNTABLE = ("params", "FLOPs", "memory")


@dataclass(frozen=True)
class Printed:
    """A figure of the paper: where it stands, its value, and the size of its last digit (None for words).

    unreproducible: why no reading of the paper gives a countable figure.
    """

    table: str
    row: str
    column: str
    value: float | str
    unit: str
    precision: float | None
    unreproducible: str | None = None

    def text(self) -> str:
        """The value as printed."""
        if isinstance(self.value, str) or self.precision is None:
            return str(self.value)
        digits = len(f"{self.precision:g}".partition(".")[2])
        return f"{self.value:.{digits}f}"

    def agrees(self, value: float) -> bool:
        """Whether a number, rounded to the printed digits, is what is printed."""
        if isinstance(self.value, str) or self.precision is None:
            raise ValueError(f"value must be a number to be compared with {value}, got {self.value!r}")
        return round(value / self.precision) == round(self.value / self.precision)


@functools.cache
def printed() -> tuple[Printed, ...]:
    """All figures, in the order of the paper's tables."""
    content = resources.files(__package__).joinpath("printed.json").read_text(encoding="utf-8")
    figures = [Printed(**figure) for figure in json.loads(content)["figures"]]
    order = [str(number) for number in range(2, 21)]
    return tuple(sorted(figures, key=lambda figure: (*order, "E.2", "fn2").index(figure.table)))


def tables() -> list[str]:
    """Names of the tables, in order."""
    return list(dict.fromkeys(figure.table for figure in printed()))


def figures_of(names: Sequence[str]) -> list[Printed]:
    """The figures of some tables, all if none is named, in the paper's order. Raises InputError for an unknown name."""
    known = tables()
    for name in names:
        if name not in known:
            raise InputError(
                f"there is no table {name!r} to show, only {', '.join(known)}{nearest(name, known)} "
                "(Table 1 of the paper has no figures)"
            )
    return [figure for figure in printed() if not names or figure.table in names]
