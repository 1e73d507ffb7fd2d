"""Results of a comparison: results.json with its runs, from which tables and figures are made whenever it is read."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from matplotlib.figure import Figure
from pydantic import Field

from lambdanets.errors import InputError
from lambdanets.files import atomic_write
from lambdanets.records import parse_json, write_json
from lambdanets.tasks.recipes import ClassificationRecipe
from lambdanets.terminal import plural
from lambdanets.work import locked
from lambdanets_lab import plot_style
from lambdanets_lab.markdown import format_mean, markdown_table
from lambdanets_lab.plot_style import GRID, OURS, REFERENCE
from lambdanets_lab.seeds import format_difference, paired_differences, processors, scores_by_seed
from lambdanets_lab.studies.catalog import STUDIES, Variant
from lambdanets_lab.studies.execution import Plan, RunResult

RESULTS, TABLE = "results.json", "comparison.md"
# Fields of runs that must be equal to merge results.
_SETUP = ("model_name", "data", "training_images", "validation_images")
# Fields of the recipe that do not change the accuracy systematically, or are compared otherwise.
_NOT_COMPARED = ("seed", "data", "data_root", *ClassificationRecipe.CHANGEABLE)


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
    top1 = {label: scores_by_seed(runs, {"variant": variant.name}, "top1") for label, variant in variants.items()}
    baseline = top1[STUDIES[study].baseline]
    rows = [
        Row(label, variant, parameters[variant.name], top1[label], paired_differences(top1[label], baseline))
        for label, variant in variants.items()
        if top1[label]
    ]
    return sorted(rows, key=lambda row: (-len(row.top1), -row.mean))


def collect(plan: Plan, runs: Sequence[RunResult]) -> Comparison:
    recipe = asdict(plan.recipe)
    for field in plan.recipe.PATHS:  # only their names, without folders of this machine
        recipe[field] = Path(recipe[field]).name if recipe[field] else recipe[field]
    return Comparison("comparison", len(runs) == len(plan.runs()), list(plan.studies), recipe, list(runs))


def read_comparison(*paths: Path) -> Comparison:
    """Read results.json of a comparison, or of several with the same recipe and data, such as of other seeds.

    Raises InputError for other files, and if a run occurs twice.
    """
    kind = "results.json of lambdanets compare"
    contents = {path: parse_json(path.read_bytes(), Comparison, f"{path} must be {kind}") for path in paths}
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


def write_summary(comparison: Comparison, folder: Path) -> None:
    """Write results.json, comparison.md and the figures of each study."""
    with locked(folder / ".results.lock", folder, timeout=30.0):
        write_json(folder / RESULTS, asdict(comparison))
        atomic_write(folder / TABLE, markdown(comparison))
        draw_all(comparison, folder)


def markdown(comparison: Comparison) -> str:
    """Format the setup as a sentence and each study as a table."""
    parts = [describe_setup(comparison)]
    parts += [f"## {STUDIES[study].question}\n\n{table(study, comparison)}" for study in comparison.studies]
    return "\n\n".join(parts) + "\n"


def describe_setup(comparison: Comparison) -> str:
    """Describe in one sentence the model, data, seeds and machines of all runs."""
    first, seeds = comparison.runs[0], sorted({run.seed for run in comparison.runs})
    epochs = f"{'at most ' if comparison.recipe.get('patience') else ''}{comparison.recipe['epochs']}"
    return (
        f"{first.model_name} on {first.data}; {first.training_images:,} training images, epochs: {epochs}, test "
        f"images: {first.validation_images:,}, seeds {', '.join(map(str, seeds))}"
        f"{'' if comparison.finished else ', not finished'}; trained on {processors(comparison.rows)}."
    )


def table(study: str, comparison: Comparison) -> str:
    """Format the variants of a study as a Markdown table."""
    baseline = STUDIES[study].baseline
    difference = f"paired difference to {baseline}, 95% interval"
    header = ["variant", "top-1, mean ± std", "seeds", difference, "parameters", "paper, ImageNet"]
    cells, rows = [], study_rows(study, comparison)
    for row in rows:
        is_compared = row.differences and row.label != baseline
        difference = format_difference(row.differences) if is_compared else ""
        paper = "" if row.variant.paper_top1 is None else f"{row.variant.paper_top1:.1f}{' †' * row.variant.quoted}"
        top1, parameters = format_mean(list(row.top1.values()), 2), f"{row.parameters:,}"
        cells.append([row.label, top1, str(len(row.top1)), difference, parameters, paper])
    is_quoted = any(row.variant.quoted for row in rows)
    note = "\n\n† quoted by the paper from another paper, with another network and training" if is_quoted else ""
    return markdown_table(header, *cells) + note


def draw_all(comparison: Comparison, folder: Path) -> None:
    """Draw STUDY.png for each study with runs, and STUDY_curves.png if it has `_curves`."""
    for study in comparison.studies:
        rows = study_rows(study, comparison)
        if rows:
            plot_style.save(_draw(rows), folder / f"{study}.png")
        if rows and (curves := _curves(rows, comparison)):
            plot_style.save(_draw_curves(curves), folder / f"{study}_curves.png")


def _curves(rows: Sequence[Row], comparison: Comparison) -> dict[str, list[Sequence[float]]]:
    """Return the top-1 after each epoch of each run, by label.

    Empty for too many variants, if a run has another number of epochs, such as without its curve, or a single one, and
    if epochs were validated on held-out images, which are not the test images.
    """
    epochs = comparison.recipe["epochs"]
    if comparison.recipe.get("hold_out") or epochs < 2 or len(rows) > 1 + len(plot_style.BASELINES):
        return {}
    curves = {
        row.label: [run.top1_by_epoch for run in comparison.runs if run.variant == row.variant.name] for row in rows
    }
    return curves if all(len(run) == epochs for runs in curves.values() for run in runs) else {}


def _draw_curves(curves: dict[str, list[Sequence[float]]]) -> Figure:
    figure, (axis,) = plot_style.subplots(1, height=4)
    styles = ((OURS, "o"), *plot_style.BASELINES)
    for (label, runs), (color, marker) in zip(curves.items(), styles, strict=False):
        epochs = range(1, len(runs[0]) + 1)
        for run in runs:
            axis.plot(epochs, [100 * value for value in run], color=color, linewidth=0.7, alpha=0.5)
        mean = [100 * statistics.fmean(values) for values in zip(*runs, strict=True)]
        seeds = plural(len(runs), "seed")
        axis.plot(epochs, mean, color=color, marker=marker, label=f"{label}, {seeds}")
    axis.set(xlabel="epoch", ylabel="top-1 on test images (%):\nruns and mean")
    axis.grid(**GRID)
    axis.legend(fontsize=10)
    return figure


def _draw(rows: Sequence[Row]) -> Figure:
    """Draw one line per variant: a dot for each run, and the mean with an error bar of one std."""
    figure, (axis,) = plot_style.subplots(1, height=1.2 + 0.4 * len(rows))
    labels = []
    for y, row in enumerate(reversed(rows)):
        runs = list(row.top1.values())
        color, marker = (OURS, "o") if row.variant.name.startswith("lambda") else (REFERENCE, "s")
        axis.plot(runs, [y] * len(runs), marker, color=color, alpha=0.35)
        labels.append(row.label if len(runs) > 1 else f"{row.label} (1 seed)")
        if len(runs) > 1:
            std = statistics.stdev(runs)
            axis.errorbar(row.mean, y, xerr=std, fmt="|", color=color, markersize=16, capsize=4)
    axis.set_yticks(range(len(rows)), labels)
    axis.set_ylim(-0.6, len(rows) - 0.4)
    axis.set_xlabel("top-1 on test images (%): runs, mean ± std")
    axis.grid(axis="x", **GRID)
    return figure
