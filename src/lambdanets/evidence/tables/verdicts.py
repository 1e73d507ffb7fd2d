"""Each printed figure with ours beside it, and what came of it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from lambdanets.evidence.tables import complexity
from lambdanets.evidence.tables.memory import memory_of
from lambdanets.evidence.tables.printed import COUNTABLE, Printed
from lambdanets.evidence.tables.rows import OF_OTHERS, Build, build_of, structure
from lambdanets.models.counting import count_flops, count_parameters, count_parameters_in_use

MATCH, DIFFERS, LISTED = "match", "differs", "not reproducible"
MEASURED, QUOTED, NOT_FITTED, ANOTHER, SETTING, NOT_MEASURED = (
    "measured here",
    "not reproduced",
    "not fitted",
    "another network",
    "setting",
    "not measured",
)
SPEEDS = ("throughput", "train throughput", "inference throughput", "train step latency")
_MILLION, _BILLION = 1e6, 1e9
_SIZES = {("params", "M"): _MILLION, ("FLOPs", "M"): _MILLION, ("FLOPs", "B"): _BILLION, ("FLOPs", "G"): _BILLION}
# Table 17's FLOPs come out only if lambdas are summed and applied once, Table 16's only if each is applied by itself.
_APPLIED_TOGETHER = ("17",)
_STRUCTURE = ("blocks", "lambda layers in c4")
_SETTINGS = ("image size", "RandAugment magnitude", "dropout", "stochastic depth rate", "space complexity")

# (table, row, column) to what was measured, in the unit of the column, and a note on it.
Measurements = Mapping[tuple[str, str, str], tuple[float, str]]


@dataclass(frozen=True)
class Line:
    """A printed figure, ours in the same unit (or in words), what came of it, why not, and the model behind it."""

    printed: Printed
    ours: float | str | None
    verdict: str
    note: str = ""
    model: str = ""

    @property
    def countable(self) -> bool:
        """Whether the figure was to be counted, and was."""
        return self.printed.column in COUNTABLE and self.verdict in (MATCH, DIFFERS, LISTED)


def compare(figures: Iterable[Printed], measured: Measurements | None = None) -> list[Line]:
    """A line for each figure; speeds only where they were measured."""
    return [_line(figure, measured or {}) for figure in figures]


def summary(lines: Sequence[Line]) -> str:
    """What came of the lines, in a few sentences."""
    countable = [line for line in lines if line.countable]
    listed = sum(line.verdict == LISTED for line in countable)
    matches = sum(line.verdict == MATCH for line in countable)
    said = f"{matches} of {len(countable)} countable numbers match; {listed} not reproducible (see notes)"
    wrong = sum(line.verdict == DIFFERS for line in lines)
    others = [line for line in lines if line.verdict == MATCH and not line.countable]
    fitted = sum(line.printed.column == "time" for line in others)
    more = [f"{len(others) - fitted} entries of Table 19"] if len(others) > fitted else []
    more += [f"{fitted} fitted complexities"] if fitted else []
    if more:
        said += f"; {' and '.join(more)} match"
    return f"{said}; {wrong} {'differs' if wrong == 1 else 'differ'}" if wrong else said


def _line(figure: Printed, measured: Measurements) -> Line:
    build = build_of(figure.table, figure.row)
    model = "" if build is None else str(build)
    key = (figure.table, figure.row, figure.column)
    if key in measured:
        value, note = measured[key]
        return Line(figure, value, MEASURED, note, model)
    if figure.column in COUNTABLE:
        return _counted(figure, build, model)
    if figure.column in _STRUCTURE and build is not None:
        ours = structure(build, figure.column)
        return Line(figure, ours, MATCH if ours == figure.value else DIFFERS, model=model)
    if figure.column == "time":
        return _fitted(figure)
    if figure.column == "space":
        return Line(figure, None, NOT_FITTED)
    if figure.column in SPEEDS or "slowdown" in figure.column:
        return Line(figure, None, NOT_MEASURED, model=model)
    if figure.column in _SETTINGS:
        return Line(figure, None, SETTING, model=model)
    return Line(figure, None, QUOTED, model=model)


def _counted(figure: Printed, build: Build | None, model: str) -> Line:
    ours = memory_of(figure.table, figure.row) if figure.unit in ("GB", "MB") else None
    if ours is None and build is not None and figure.column in ("params", "FLOPs"):
        together = figure.table in _APPLIED_TOGETHER
        ours = _count(figure.column, build, together) / _SIZES[figure.column, figure.unit]
    if ours is None:
        raise ValueError(f"figure must have a model or a formula, got {figure.row!r} of table {figure.table}")
    if (figure.table, figure.row) in OF_OTHERS:
        return Line(figure, ours, ANOTHER, OF_OTHERS[figure.table, figure.row], model)
    if figure.agrees(ours):
        return Line(figure, ours, MATCH, model=model)
    if figure.unreproducible:
        return Line(figure, ours, LISTED, figure.unreproducible, model)
    if figure.column == "params" and build is not None:
        in_use = count_parameters_in_use(build.create(), build.image_size) / _SIZES["params", figure.unit]
        if figure.agrees(in_use):
            note = (
                f"without the table entries of offsets that no map of {build.image_size} pixels has; with them {{:.3f}}"
            )
            return Line(figure, in_use, MATCH, note.format(ours), model)
    return Line(figure, ours, DIFFERS, f"expected {figure.text()}", model)


@cache
def _count(column: str, build: Build, applied_together: bool) -> int:
    model = build.create()
    if column == "params":
        return count_parameters(model)
    return count_flops(model, build.image_size, applied_together=applied_together)


def _fitted(figure: Printed) -> Line:
    term = str(figure.value)
    found = complexity.exponents(figure.table, figure.row, term)
    if found is None:
        return Line(figure, None, NOT_FITTED)
    ours = " ".join(f"{name}^{exponent + 0.0:.2f}".replace("-0.00", "0.00") for name, exponent in found.items())
    return Line(figure, ours, MATCH if complexity.as_printed(term, found) else DIFFERS)
