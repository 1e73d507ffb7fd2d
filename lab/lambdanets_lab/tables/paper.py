"""The numbers of the paper's tables, as data."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lambdanets.errors import check_choice

# Columns that can be counted, since the architecture determines them.
COUNTABLE = ("params", "FLOPs", "memory")


@dataclass(frozen=True)
class PaperNumber:
    """A number or a text in a table of the paper.

    precision: unit of the last digit, such as 0.1; None for a text. unreproducible: for a countable number that
    contradicts the architecture, how it does. other_network: for a number that the paper quotes from another paper, how
    the network differs from ours.
    """

    table: str
    row: str
    column: str
    value: float | str
    unit: str
    precision: float | None
    unreproducible: str | None = None
    other_network: str | None = None

    def text(self) -> str:
        """The value with as many digits as in the paper."""
        if isinstance(self.value, str) or self.precision is None:
            return str(self.value)
        digits = len(f"{self.precision:g}".partition(".")[2])
        return f"{self.value:.{digits}f}"

    def matches(self, value: float) -> bool:
        """Whether a value, rounded to the paper's precision, equals the paper's."""
        if isinstance(self.value, str) or self.precision is None:
            raise ValueError(f"value must be a number to be compared with {value}, got {self.value!r}")
        return round(value / self.precision) == round(self.value / self.precision)


_CONTENT = json.loads(Path(__file__).with_name("paper.json").read_text(encoding="utf-8"))
TABLES: dict[str, dict[str, str]] = _CONTENT["tables"]  # title and explanatory text by name, in the paper's order
NUMBERS = tuple(PaperNumber(**number) for number in _CONTENT["numbers"])  # in the order of the tables


def select_numbers(names: Sequence[str]) -> list[PaperNumber]:
    """Select the numbers of the named tables, or all without names. Raises InputError for an unknown name."""
    for name in names:  # Table 1 has no numbers
        check_choice("tables", name, TABLES)
    return [number for number in NUMBERS if not names or number.table in names]
