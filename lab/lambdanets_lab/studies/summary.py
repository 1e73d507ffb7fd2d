"""Tables and figures of a comparison."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from matplotlib.figure import Figure

from lambdanets.files import atomic_write, encode_utf8
from lambdanets.records import write_json
from lambdanets.text_tables import markdown_table
from lambdanets_lab import plot_style
from lambdanets_lab.plot_style import GRID, OURS, REFERENCE
from lambdanets_lab.seeds import confidence_interval, processors
from lambdanets_lab.studies.catalog import STUDIES
from lambdanets_lab.studies.results import Comparison, Row, study_rows

RESULTS, TABLE = "results.json", "comparison.md"


def write_summary(comparison: Comparison, folder: Path) -> None:
    """Write results.json, comparison.md and the figures of each study."""
    write_json(folder / RESULTS, asdict(comparison))
    atomic_write(folder / TABLE, encode_utf8(markdown(comparison)))
    draw_all(comparison, folder)


def markdown(comparison: Comparison) -> str:
    """Format the setup as a sentence and each study as a table."""
    parts = [describe_setup(comparison)]
    parts += [f"## {STUDIES[study].question}\n\n{table(study, comparison)}" for study in comparison.studies]
    return "\n\n".join(parts) + "\n"


def describe_setup(comparison: Comparison) -> str:
    """Describe in one sentence the model, data, seeds and machines of all runs."""
    first, seeds = comparison.runs[0], sorted({run.seed for run in comparison.runs})
    return (
        f"{first.model_name} on {first.data}; {first.training_images:,} training images, epochs: {first.epochs}, test "
        f"images: {first.validation_images:,}, seeds {', '.join(map(str, seeds))}"
        f"{'' if comparison.finished else ', not finished'}; trained on {processors(comparison.rows)}."
    )


def table(study: str, comparison: Comparison) -> str:
    """Format the variants of a study as a Markdown table."""
    baseline = STUDIES[study].baseline
    header = ["variant", "top-1, mean ± std", "min to max", "seeds"]
    header += [f"paired difference to {baseline}", "95% interval", "parameters", "paper, ImageNet"]
    cells, is_quoted = [], False
    for row in study_rows(study, comparison):
        values, differences = list(row.top1.values()), row.differences
        difference = interval = ""
        if differences and row.label != baseline:
            difference = f"{statistics.fmean(differences):+.2f}"
            if len(differences) > 1:
                difference += f" ± {statistics.stdev(differences):.2f}"
                interval = " to ".join(f"{bound:+.2f}" for bound in confidence_interval(differences))
        top1, spread = f"{row.mean:.2f}", ""
        if len(values) > 1:
            top1, spread = f"{top1} ± {statistics.stdev(values):.2f}", f"{min(values):.2f} to {max(values):.2f}"
        is_quoted |= row.variant.quoted
        paper = "" if row.variant.paper_top1 is None else f"{row.variant.paper_top1:.1f}{' †' * row.variant.quoted}"
        parameters = f"{row.parameters:,}"
        cells.append([row.label, top1, spread, str(len(values)), difference, interval, parameters, paper])
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
    epochs = comparison.runs[0].epochs
    if comparison.recipe.get("hold_out") or epochs < 2 or len(rows) > 1 + len(plot_style.BASELINES):
        return {}
    curves = {
        row.label: [run.top1_by_epoch for run in comparison.runs if run.variant == row.variant.name] for row in rows
    }
    return curves if all(len(run) == epochs for runs in curves.values() for run in runs) else {}


def _draw_curves(curves: dict[str, list[Sequence[float]]]) -> Figure:
    """Draw a thin line for each run, and a thick one for the mean over seeds."""
    figure, (axis,) = plot_style.subplots(1, height=4)
    styles = ((OURS, "o"), *plot_style.BASELINES)
    for (label, runs), (color, marker) in zip(curves.items(), styles, strict=False):
        epochs = range(1, len(runs[0]) + 1)
        for run in runs:
            axis.plot(epochs, [100 * value for value in run], color=color, linewidth=0.7, alpha=0.5)
        mean = [100 * statistics.fmean(values) for values in zip(*runs, strict=True)]
        seeds = f"{len(runs)} seeds" if len(runs) > 1 else "1 seed"
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
