"""results.json of a comparison: its runs, from which the statistics over seeds are computed whenever it is read."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from lambdanets.errors import InputError
from lambdanets.records import read_json
from lambdanets_lab.seeds import paired_differences, points
from lambdanets_lab.studies.catalog import STUDIES, Variant
from lambdanets_lab.studies.execution import Plan, RunResult

# Fields of runs that must be equal to merge results.
_SETUP = ("model_name", "data", "training_images", "validation_images", "epochs")
# Fields of the recipe that do not change the accuracy systematically, or are compared otherwise.
_NOT_COMPARED = ("seed", "workers", "max_unreadable", "checkpoint_every", "data", "data_root")


@dataclass(frozen=True)
class Comparison:
    """The content of results.json. studies: their names. recipe: shared by the runs, without local paths."""

    kind: Literal["comparison"]
    finished: bool
    studies: list[str]
    recipe: dict[str, Any]
    runs: Annotated[list[RunResult], Field(min_length=1)]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The runs as dictionaries."""
        return [asdict(run) for run in self.runs]


@dataclass(frozen=True)
class Row:
    """A variant of a study with runs. top1: in percent by seed. differences: in points, to the study's baseline."""

    label: str
    variant: Variant
    parameters: int
    top1: dict[int, float]
    differences: list[float]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.top1.values())


def study_rows(study: str, comparison: Comparison) -> list[Row]:
    """Return one row per variant that has runs: those with most seeds first, then by mean."""
    runs = comparison.rows
    parameters = {run["variant"]: run["parameters"] for run in runs}
    variants = STUDIES[study].variants
    top1 = {label: points(runs, {"variant": variant.name}, "top1") for label, variant in variants.items()}
    baseline = top1[STUDIES[study].baseline]
    rows = [
        Row(label, variant, parameters[variant.name], top1[label], paired_differences(top1[label], baseline))
        for label, variant in variants.items()
        if top1[label]
    ]
    return sorted(rows, key=lambda row: (-len(row.top1), -row.mean))


def collect(plan: Plan, runs: Sequence[RunResult]) -> Comparison:
    """Return the results of the finished runs of a plan."""
    recipe = asdict(plan.recipe)
    for field in ("data", "data_root"):  # without local paths
        recipe[field] = Path(recipe[field]).name if recipe[field] else recipe[field]
    return Comparison("comparison", len(runs) == len(plan.runs()), list(plan.studies), recipe, list(runs))


def read_comparison(*paths: Path) -> Comparison:
    """Read results.json of a comparison, or of several with the same recipe and data, such as of other seeds.

    Raises InputError for other files, and if a run occurs twice.
    """
    contents = {path: read_json(path, Comparison) for path in paths}
    first = contents[paths[0]]
    runs: dict[tuple[str, int], RunResult] = {}
    for path, content in contents.items():
        files = f"{paths[0]} and {path}"
        setups = [{name: getattr(each.runs[0], name) for name in _SETUP} for each in (first, content)]
        _check_equal(f"{files} must have", *setups)
        _check_equal(f"{files} must have recipes with", first.recipe, content.recipe)
        for run in content.runs:
            if runs.setdefault((run.variant, run.seed), run) is not run:
                raise InputError(
                    f"results to merge must have different runs, got {run.variant}, seed {run.seed} twice: {path}"
                )
    studies = [name for name in STUDIES if any(name in content.studies for content in contents.values())]
    finished = all(content.finished for content in contents.values())
    return Comparison("comparison", finished, studies, first.recipe, list(runs.values()))


def _check_equal(what: str, first: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Raise InputError unless the fields that both have are equal."""
    for name in sorted(first.keys() & other.keys() - {*_NOT_COMPARED}):
        if first[name] != other[name]:
            raise InputError(f"{what} the same {name}, got {first[name]} and {other[name]}")
