"""Compare each number of the paper with ours."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from lambdanets.evidence.tables import complexity
from lambdanets.evidence.tables.memory import paper_memory
from lambdanets.evidence.tables.paper import COUNTABLE, PaperNumber
from lambdanets.evidence.tables.rows import OTHER_NETWORKS, ModelSpec, find_model, structure
from lambdanets.models.counting import count_flops, count_parameters, count_parameters_in_use

MATCH, DIFFERS, NOT_REPRODUCIBLE = "match", "differs", "not reproducible"
MEASURED, NOT_REPRODUCED, NOT_FITTED, OTHER_NETWORK, SETTING, NOT_MEASURED = (
    "measured here",
    "not reproduced",
    "not fitted",
    "different network",
    "setting",
    "not measured",
)
SPEEDS = ("throughput", "train throughput", "inference throughput", "train step latency")
_MILLION, _BILLION = 1e6, 1e9
_SIZES = {("params", "M"): _MILLION, ("FLOPs", "M"): _MILLION, ("FLOPs", "B"): _BILLION, ("FLOPs", "G"): _BILLION}
# Tables whose FLOPs match if content and position lambdas are summed and applied once; in others, each is applied.
_APPLIED_TOGETHER = ("17",)
_STRUCTURE = ("blocks", "lambda layers in c4")
_SETTINGS = ("image size", "RandAugment magnitude", "dropout", "stochastic depth rate", "space complexity")

# (table, row, column) -> (measured value in the column's unit, note)
Measurements = Mapping[tuple[str, str, str], tuple[float, str]]


@dataclass(frozen=True)
class Line:
    """The comparison of one number of the paper with ours, in the same unit or as text."""

    paper: PaperNumber
    ours: float | str | None
    verdict: str
    note: str = ""
    model: str = ""

    @property
    def countable(self) -> bool:
        """Whether the number is one that can be counted, and was compared."""
        return self.paper.column in COUNTABLE and self.verdict in (MATCH, DIFFERS, NOT_REPRODUCIBLE)


def compare(numbers: Iterable[PaperNumber], measured: Measurements | None = None) -> list[Line]:
    """Make one line per number of the paper; speeds have a value of ours if they were measured."""
    return [_line(number, measured or {}) for number in numbers]


def summary(lines: Sequence[Line]) -> str:
    """Summarize the numbers of matches and mismatches in one sentence."""
    countable = [line for line in lines if line.countable]
    unreproducible = sum(line.verdict == NOT_REPRODUCIBLE for line in countable)
    matches = sum(line.verdict == MATCH for line in countable)
    text = f"{matches} of {len(countable)} countable numbers match; {unreproducible} not reproducible (see notes)"
    wrong = sum(line.verdict == DIFFERS for line in lines)
    uncounted = [line for line in lines if line.verdict == MATCH and not line.countable]
    fitted = sum(line.paper.column == "time" for line in uncounted)
    parts = [f"{len(uncounted) - fitted} entries of Table 19"] if len(uncounted) > fitted else []
    parts += [f"{fitted} fitted complexities"] if fitted else []
    if parts:
        text += f"; {' and '.join(parts)} match"
    return f"{text}; {wrong} {'differs' if wrong == 1 else 'differ'}" if wrong else text


def _line(number: PaperNumber, measured: Measurements) -> Line:
    spec = find_model(number.table, number.row)
    model = "" if spec is None else str(spec)
    key = (number.table, number.row, number.column)
    if key in measured:
        value, note = measured[key]
        return Line(number, value, MEASURED, note, model)
    if number.column in COUNTABLE:
        return _counted(number, spec, model)
    if number.column in _STRUCTURE and spec is not None:
        ours = structure(spec, number.column)
        return Line(number, ours, MATCH if ours == number.value else DIFFERS, model=model)
    if number.column == "time":
        return _fitted(number)
    if number.column == "space":
        return Line(number, None, NOT_FITTED)
    if number.column in SPEEDS or "slowdown" in number.column:
        return Line(number, None, NOT_MEASURED, model=model)
    if number.column in _SETTINGS:
        return Line(number, None, SETTING, model=model)
    return Line(number, None, NOT_REPRODUCED, model=model)


def _counted(number: PaperNumber, spec: ModelSpec | None, model: str) -> Line:
    ours = paper_memory(number.table, number.row) if number.unit in ("GB", "MB") else None
    if ours is None and spec is not None and number.column in ("params", "FLOPs"):
        together = number.table in _APPLIED_TOGETHER
        ours = _count(number.column, spec, together) / _SIZES[number.column, number.unit]
    if ours is None:
        raise ValueError(f"number must have a model or a formula, got {number.row!r} of table {number.table}")
    if (number.table, number.row) in OTHER_NETWORKS:
        return Line(number, ours, OTHER_NETWORK, OTHER_NETWORKS[number.table, number.row], model)
    if number.matches(ours):
        return Line(number, ours, MATCH, model=model)
    if number.unreproducible:
        return Line(number, ours, NOT_REPRODUCIBLE, number.unreproducible, model)
    if number.column == "params" and spec is not None:
        in_use = count_parameters_in_use(spec.create(), spec.image_size) / _SIZES["params", number.unit]
        if number.matches(in_use):
            note = f"without table entries that no {spec.image_size}-pixel image uses; with them {{:.3f}}"
            return Line(number, in_use, MATCH, note.format(ours), model)
    return Line(number, ours, DIFFERS, f"expected {number.text()}", model)


@cache
def _count(column: str, spec: ModelSpec, single_application: bool) -> int:
    model = spec.create()
    if column == "params":
        return count_parameters(model)
    return count_flops(model, spec.image_size, single_application=single_application)


def _fitted(number: PaperNumber) -> Line:
    term = str(number.value)
    fitted = complexity.exponents(number.table, number.row, term)
    if fitted is None:
        return Line(number, None, NOT_FITTED)
    ours = " ".join(f"{name}^{exponent + 0.0:.2f}".replace("-0.00", "0.00") for name, exponent in fitted.items())
    return Line(number, ours, MATCH if complexity.matches_term(term, fitted) else DIFFERS)
