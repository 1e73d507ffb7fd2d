"""Tables and figures of a comparison."""

import statistics
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from lambdanets.files import atomic_write, encode_utf8
from lambdanets.records import write_json
from lambdanets_lab import plot_style
from lambdanets_lab.markdown import markdown_table
from lambdanets_lab.plot_style import GRID, OURS, REFERENCE

RESULTS, TABLE = "results.json", "comparison.md"


def write_summary(summary: dict[str, Any], folder: Path) -> None:
    """Write results.json, comparison.md and the figures of each study."""
    write_json(folder / RESULTS, summary)
    atomic_write(folder / TABLE, encode_utf8(markdown(summary)))
    draw_all(summary, folder)


def markdown(summary: dict[str, Any]) -> str:
    """Format the setup as a sentence and each study as a table."""
    parts = [describe_setup(summary)]
    parts += [f"## {study['question']}\n\n{table(study)}" for study in summary["studies"].values()]
    return "\n\n".join(parts) + "\n"


def describe_setup(summary: dict[str, Any]) -> str:
    """Describe in one sentence the model, data, seeds and machines of all runs."""
    machines = [machine["hardware"]["gpu"] or machine["hardware"]["processor"] for machine in summary["machines"]]
    return (
        f"{summary['model_name']} on {summary['data']}; {summary['training_images']:,} training images, epochs: "
        f"{summary['epochs']}, test images: {summary['validation_images']:,}, seeds "
        f"{', '.join(map(str, summary['seeds']))}{'' if summary['finished'] else ', not finished'}; trained on "
        f"{', '.join(dict.fromkeys(machines))}."
    )


def table(study: dict[str, Any]) -> str:
    """Format the variants of a study as a Markdown table."""
    header = ["variant", "top-1, mean ± std", "min to max", "seeds"]
    header += [f"paired difference to {study['baseline']}", "95% interval", "parameters", "paper, ImageNet"]
    rows = []
    for row in study["variants"]:
        std = "" if row["std_top1"] is None else f" ± {100 * row['std_top1']:.2f}"
        difference = interval = ""
        if row["mean_difference"] is not None and row["label"] != study["baseline"]:
            difference = f"{100 * row['mean_difference']:+.2f}"
            if row["interval"] is not None:
                difference += f" ± {100 * row['std_difference']:.2f}"
                interval = " to ".join(f"{100 * bound:+.2f}" for bound in row["interval"])
        spread = f"{100 * row['min_top1']:.2f} to {100 * row['max_top1']:.2f}" if row["seeds"] > 1 else ""
        paper = "" if row["paper_top1"] is None else f"{row['paper_top1']:.1f}{' †' if row['quoted'] else ''}"
        top1 = f"{100 * row['mean_top1']:.2f}{std}"
        rows.append(
            [row["label"], top1, spread, str(row["seeds"]), difference, interval, f"{row['parameters']:,}", paper]
        )
    text = markdown_table(header, *rows)
    if any(row["quoted"] for row in study["variants"]):
        text += "\n\n† quoted by the paper from another paper, with another network and training"
    return text


def draw_all(summary: dict[str, Any], folder: Path) -> list[Path]:
    """Draw STUDY.png for each study with runs, and STUDY_curves.png if it has `_curves`; return the paths."""
    paths = []
    for name, study in summary["studies"].items():
        if not study["variants"]:
            continue
        figures = {name: _draw(study, summary)}
        if curves := _curves(study, summary):
            figures[f"{name}_curves"] = _draw_curves(curves)
        for stem, figure in figures.items():
            paths.append(folder / f"{stem}.png")
            plot_style.save(figure, paths[-1])
    return paths


def _curves(study: dict[str, Any], summary: dict[str, Any]) -> dict[str, list[list[float]]]:
    """Return the top-1 after each epoch of each run, by label.

    Empty for too many variants, if a run has another number of epochs, such as without its curve, or a single one, and
    if epochs were validated on held-out images, which are not the test images.
    """
    if summary["recipe"].get("hold_out"):
        return {}
    curves = {}
    for row in study["variants"]:
        runs = [run.get("top1_by_epoch", []) for run in summary["runs"] if run["variant"] == row["variant"]]
        if {len(run) for run in runs} != {summary["epochs"]} or summary["epochs"] < 2:
            return {}
        curves[row["label"]] = runs
    return curves if len(curves) <= 1 + len(plot_style.BASELINES) else {}


def _draw_curves(curves: dict[str, list[list[float]]]) -> Figure:
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


def _draw(study: dict[str, Any], summary: dict[str, Any]) -> Figure:
    """Draw one line per variant: a dot for each run, and the mean with an error bar of one std."""
    rows = list(reversed(study["variants"]))
    figure, (axis,) = plot_style.subplots(1, height=1.2 + 0.4 * len(rows))
    labels = []
    for y, row in enumerate(rows):
        runs = [100 * run["top1"] for run in summary["runs"] if run["variant"] == row["variant"]]
        color, marker = (OURS, "o") if row["variant"].startswith("lambda") else (REFERENCE, "s")
        axis.plot(runs, [y] * len(runs), marker, color=color, alpha=0.35)
        labels.append(row["label"] if len(runs) > 1 else f"{row['label']} (1 seed)")
        if row["std_top1"] is not None:
            mean, std = 100 * row["mean_top1"], 100 * row["std_top1"]
            axis.errorbar(mean, y, xerr=std, fmt="|", color=color, markersize=16, capsize=4)
    axis.set_yticks(range(len(rows)), labels)
    axis.set_ylim(-0.6, len(rows) - 0.4)
    axis.set_xlabel("top-1 on test images (%): runs, mean ± std")
    axis.grid(axis="x", **GRID)
    return figure
