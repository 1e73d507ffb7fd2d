"""Compare each number of the paper with ours."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from lambdanets_lab.models.counting import count_flops
from lambdanets_lab.paper_models import PAPER_MODELS, ModelSpec, structure
from lambdanets_lab.tables.costs import MEMORY, multiply_adds_per_term
from lambdanets_lab.tables.paper import COUNTABLE, PaperNumber

MATCH, DIFFERS, NOT_REPRODUCIBLE, OTHER_NETWORK = "match", "differs", "not reproducible", "different network"
NOT_REPRODUCED, NOT_MEASURED, MEASURED = "not reproduced", "not measured", "measured here"
SPEEDS = ("throughput", "train throughput", "inference throughput", "train step latency")
_MILLION, _BILLION = 1e6, 1e9
_UNITS = {("params", "M"): _MILLION, ("FLOPs", "M"): _MILLION, ("FLOPs", "B"): _BILLION, ("FLOPs", "G"): _BILLION}
# Tables whose FLOPs match if content and position lambdas are summed and applied once; in others, each is applied.
_SINGLE_APPLICATION = ("17",)
_STRUCTURE = ("blocks", "lambda layers in c4")
_SETTINGS = ("image size", "RandAugment magnitude", "dropout", "stochastic depth rate")
_TOLERANCE = 0.02  # of multiply-adds / the paper's term
_NOT_COMPARED = (*_SETTINGS, "time", "space", "space complexity")

# (measured value in the column's unit, note), keyed by (table, row, column)
CellValues = Mapping[tuple[str, str, str], tuple[float, str]]


@dataclass(frozen=True)
class Comparison:
    """The comparison of one number of the paper with ours, in the same unit or as text."""

    paper: PaperNumber
    ours: float | str | None
    verdict: str
    note: str = ""

    @property
    def countable(self) -> bool:
        """Whether the number is countable and was compared."""
        return self.paper.column in COUNTABLE and self.verdict in (MATCH, DIFFERS, NOT_REPRODUCIBLE)


def compare(numbers: Iterable[PaperNumber], measured: CellValues | None = None) -> list[Comparison]:
    """Compare each number of the paper with ours; for speeds, ours are the measured ones, if any."""
    return [_compare_number(number, measured or {}) for number in numbers]


def summary(comparisons: Sequence[Comparison]) -> str:
    """Summarize the numbers of matches and mismatches in one sentence."""
    countable = [c for c in comparisons if c.countable]
    num_unreproducible = sum(c.verdict == NOT_REPRODUCIBLE for c in countable)
    num_matches = sum(c.verdict == MATCH for c in countable)
    text = (
        f"{num_matches} of {len(countable)} countable numbers match; {num_unreproducible} not reproducible (see notes)"
    )
    num_different = sum(c.verdict == DIFFERS for c in comparisons)
    uncounted = [c for c in comparisons if c.verdict == MATCH and not c.countable]
    num_times = sum(c.paper.column == "time" for c in uncounted)
    parts = [f"{len(uncounted) - num_times} entries of Table 19"] if len(uncounted) > num_times else []
    parts += [f"{num_times} complexities"] if num_times else []
    if parts:
        text += f"; {' and '.join(parts)} match"
    return f"{text}; {num_different} {'differs' if num_different == 1 else 'differ'}" if num_different else text


def _compare_number(number: PaperNumber, measured: CellValues) -> Comparison:
    spec = PAPER_MODELS.get(number.table, {}).get(number.row)
    key = (number.table, number.row, number.column)
    if key in measured:
        value, note = measured[key]
        return Comparison(number, value, MEASURED, note)
    if number.column in COUNTABLE:
        return _compare_counted(number, spec)
    if number.column in _STRUCTURE and spec is not None:
        ours = structure(spec.name)[number.column]
        return Comparison(number, ours, MATCH if ours == number.value else DIFFERS)
    if number.column == "time":
        ratio = multiply_adds_per_term(number.table, number.row, str(number.value))
        if ratio is not None:
            return Comparison(number, f"{ratio:.3f} {number.value}", MATCH if abs(ratio - 1) < _TOLERANCE else DIFFERS)
    if number.column in _NOT_COMPARED:
        return Comparison(number, None, "")
    is_speed = number.column in SPEEDS or "slowdown" in number.column
    return Comparison(number, None, NOT_MEASURED if is_speed else NOT_REPRODUCED)


def _compare_counted(number: PaperNumber, spec: ModelSpec | None) -> Comparison:
    ours = MEMORY.get((number.table, number.row)) if number.unit in ("GB", "MB") else None
    if ours is None and spec is not None and number.column in ("params", "FLOPs"):
        single_application = number.table in _SINGLE_APPLICATION
        ours = _count(number.column, spec, single_application) / _UNITS[number.column, number.unit]
    if ours is None:
        raise ValueError(f"number must have a model or a formula, got {number.row!r} of table {number.table}")
    if number.other_network:
        return Comparison(number, ours, OTHER_NETWORK, number.other_network)
    if number.matches(ours):
        return Comparison(number, ours, MATCH)
    if number.unreproducible:
        return Comparison(number, ours, NOT_REPRODUCIBLE, number.unreproducible)
    return Comparison(number, ours, DIFFERS, f"expected {number.text()}")


@cache
def _count(column: str, spec: ModelSpec, single_application: bool) -> int:
    model = spec.create()
    if column == "params":
        return sum(parameter.numel() for parameter in model.parameters())
    return count_flops(model, spec.image_size, single_application=single_application)
